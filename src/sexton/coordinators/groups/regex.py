"""Regular expressions of topic subscriptions, matched in linear time.

Kafka takes RE2 syntax here (RE2/J) because a subscription comes from outside: with a backtracking matcher, such as
Python's `re`, one client could stop the broker with `(a+)+b`. So the expression is parsed here and run as a
nondeterministic automaton, one pass over the name whatever the expression is. The whole name must match.

Known: literals and escapes, `.`, classes with ranges, negation, `\\d \\w \\s` and their opposites, POSIX classes such
as `[[:alpha:]]`, groups (capturing, named, `(?:...)`), flags `i`, `s`, `m`, `U` set by `(?i)` or `(?i:...)`,
alternation, `* + ? {n,m}` also lazy, anchors `^ $ \\A \\z \\b \\B`, `\\Q...\\E`. As in RE2, no back references,
no look-around and no possessive repetition. Declared deviation: `\\p{...}` classes are refused; topic names have only
ASCII characters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from sexton.protocol.errors import ErrorCode, KafkaError

REPEAT_MAX = 1000
"""RE2's own limit for `{n,m}`."""
STATES_MAX = 10_000
"""Bounds the memory of one expression, as RE2's budget does: nested repetitions multiply."""
LENGTH_MAX = 10_000
DEPTH_MAX = 200
COMPILED_COUNT_MAX = 64
"""Members of a group send the same expression; few groups send any."""

Test: TypeAlias = Callable[[str], bool]


@lru_cache(maxsize=COMPILED_COUNT_MAX)
def compile_regex(text: str) -> Callable[[str], bool]:
    """Returns a function that tells whether a whole topic name matches. Raises INVALID_REGULAR_EXPRESSION."""
    return _Program(_Parser(text).parse()).matches


@dataclass(slots=True)
class _Char:
    test: Test


@dataclass(slots=True)
class _Anchor:
    holds: Callable[[str, int], bool]


@dataclass(slots=True)
class _Sequence:
    parts: list[_Node] = field(default_factory=list)


@dataclass(slots=True)
class _Choice:
    options: list[_Node]


@dataclass(slots=True)
class _Repeat:
    node: _Node
    at_least: int
    at_most: int | None


_Node: TypeAlias = _Char | _Anchor | _Sequence | _Choice | _Repeat


def _is_word(char: str) -> bool:
    return char.isascii() and (char.isalnum() or char == "_")


_CLASSES: dict[str, Test] = {
    "d": lambda c: c.isascii() and c.isdigit(),
    "w": _is_word,
    "s": lambda c: c in "\t\n\f\r ",
}
_POSIX: dict[str, Test] = {
    "alnum": lambda c: c.isascii() and c.isalnum(),
    "alpha": lambda c: c.isascii() and c.isalpha(),
    "ascii": lambda c: c.isascii(),
    "blank": lambda c: c in "\t ",
    "cntrl": lambda c: c.isascii() and not c.isprintable(),
    "digit": lambda c: c.isascii() and c.isdigit(),
    "graph": lambda c: "!" <= c <= "~",
    "lower": lambda c: "a" <= c <= "z",
    "print": lambda c: " " <= c <= "~",
    "punct": lambda c: "!" <= c <= "~" and not c.isalnum(),
    "space": lambda c: c in "\t\n\v\f\r ",
    "upper": lambda c: "A" <= c <= "Z",
    "word": _is_word,
    "xdigit": lambda c: c in "0123456789abcdefABCDEF",
}
_ESCAPES = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_ANCHORS: dict[str, Callable[[str, int], bool]] = {
    "A": lambda name, at: at == 0,
    "z": lambda name, at: at == len(name),
    "b": lambda name, at: _at_boundary(name, at),
    "B": lambda name, at: not _at_boundary(name, at),
}


def _at_boundary(name: str, at: int) -> bool:
    before = at > 0 and _is_word(name[at - 1])
    after = at < len(name) and _is_word(name[at])
    return before != after


def _negated(test: Test) -> Test:
    return lambda c: not test(c)


def _either(tests: list[Test]) -> Test:
    return lambda c: any(test(c) for test in tests)


def _literal(char: str, ignore_case: bool) -> Test:
    if ignore_case:
        folded = char.lower()
        return lambda c: c.lower() == folded
    return lambda c: c == char


class _Parser:
    """Recursive descent, one method a level of the grammar."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.ignore_case = False
        self.dot_all = False
        self.multi_line = False
        self.depth = 0

    def parse(self) -> _Node:
        if len(self.text) > LENGTH_MAX:
            raise self.error(f"longer than {LENGTH_MAX} characters")
        node = self.alternation()
        if self.at < len(self.text):
            raise self.error("unexpected )")
        return node

    def error(self, what: str) -> KafkaError:
        return KafkaError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{self.text[:100]}` is not a valid regular expression: {what}.",
        )

    def peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def accept(self, text: str) -> bool:
        if not self.peek(text):
            return False
        self.at += len(text)
        return True

    def next(self) -> str:
        if self.at >= len(self.text):
            raise self.error("it ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def until(self, end: str) -> str:
        found = self.text.find(end, self.at)
        if found < 0:
            raise self.error(f"missing {end}")
        part, self.at = self.text[self.at : found], found + len(end)
        return part

    def alternation(self) -> _Node:
        flags = self.ignore_case, self.dot_all, self.multi_line
        options: list[_Node] = [self.sequence()]
        while self.accept("|"):
            options.append(self.sequence())
        self.ignore_case, self.dot_all, self.multi_line = flags  # what a group set ends with it
        return options[0] if len(options) == 1 else _Choice(options)

    def sequence(self) -> _Node:
        sequence = _Sequence()
        while self.at < len(self.text) and not self.peek("|") and not self.peek(")"):
            if self.accept("\\Q"):
                end = self.text.find("\\E", self.at)
                quoted = self.text[self.at :] if end < 0 else self.text[self.at : end]
                self.at += len(quoted) + (2 if end >= 0 else 0)
                sequence.parts += [_Char(_literal(char, self.ignore_case)) for char in quoted]
                if quoted:  # what follows repeats the last character alone
                    sequence.parts.append(self.repetition(sequence.parts.pop()))
            else:
                node = self.atom()
                if node is not None:
                    sequence.parts.append(self.repetition(node))
        return sequence

    def repetition(self, node: _Node) -> _Node:
        repeated = False
        while True:
            start = self.at
            if self.accept("*"):
                bounds: tuple[int, int | None] = (0, None)
            elif self.accept("+"):
                bounds = (1, None)
            elif self.accept("?"):
                bounds = (0, 1)
            else:
                counted = self.counts() if self.peek("{") else None
                if counted is None:
                    self.at = start
                    return node
                bounds = counted
            if repeated:
                raise self.error(f"nothing to repeat before {self.text[start]}")
            repeated = True
            self.accept("?")  # lazy or not: the whole name must match anyway
            node = _Repeat(node, *bounds)

    def counts(self) -> tuple[int, int | None] | None:
        """`{n}`, `{n,}` or `{n,m}`; any other brace is a literal, as in RE2."""
        end = self.text.find("}", self.at)
        low, comma, high = self.text[self.at + 1 : end].partition(",")
        if end < 0 or not (low.isascii() and low.isdigit()) or not (high == "" or (high.isascii() and high.isdigit())):
            return None
        at_least = int(low)
        at_most = at_least if not comma else (int(high) if high else None)
        if max(at_least, at_most or 0) > REPEAT_MAX or (at_most is not None and at_most < at_least):
            raise self.error(f"bad repetition {self.text[self.at : end + 1]}")
        self.at = end + 1
        return at_least, at_most

    def atom(self) -> _Node | None:
        char = self.next()
        match char:
            case "(":
                return self.group()
            case "[":
                return _Char(self.char_class())
            case ".":
                return _Char((lambda c: True) if self.dot_all else (lambda c: c != "\n"))
            case "^" | "$":
                return _Anchor(_ANCHORS["A" if char == "^" else "z"] if not self.multi_line else _line_anchor(char))
            case "*" | "+" | "?":
                raise self.error(f"nothing to repeat before {char}")
            case "\\":
                return self.escape()
        return _Char(_literal(char, self.ignore_case))

    def group(self) -> _Node | None:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise self.error(f"groups are nested more than {DEPTH_MAX} deep")
        outer = self.ignore_case, self.dot_all, self.multi_line
        if self.accept("?P<") or self.accept("?<"):
            name = self.until(">")
            if not name or not all(_is_word(char) for char in name):
                raise self.error("bad group name")
        elif self.accept("?") and self.flags():
            self.depth -= 1
            return None
        node = self.alternation()
        if not self.accept(")"):
            raise self.error("missing )")
        self.ignore_case, self.dot_all, self.multi_line = outer
        self.depth -= 1
        return node

    def flags(self) -> bool:
        """After `(?`. True if the flags are for the rest of the enclosing group, `(?i)`; false for `(?i:...)`."""
        value = True
        while True:
            match self.next():
                case "i":
                    self.ignore_case = value
                case "s":
                    self.dot_all = value
                case "m":
                    self.multi_line = value
                case "U":
                    pass
                case "-" if value:
                    value = False
                case ")":
                    return True
                case ":":
                    return False
                case other:
                    raise self.error(f"(?{other} is not supported")

    def escape(self) -> _Node:
        char = self.next()
        if char in _ANCHORS:
            return _Anchor(_ANCHORS[char])
        return _Char(self.escaped(char))

    def escaped(self, char: str) -> Test:
        if char.lower() in _CLASSES:
            test = _CLASSES[char.lower()]
            return _negated(test) if char.isupper() else test
        return _literal(self.escaped_char(char), self.ignore_case)

    def escaped_char(self, char: str) -> str:
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char == "x":
            digits = self.until("}") if self.accept("{") else self.next() + self.next()
            try:
                return chr(int(digits, 16))
            except (ValueError, OverflowError):
                raise self.error(f"bad escape \\x{digits}") from None
        if char.isalnum():
            raise self.error(f"\\{char} is not supported")
        return char

    def char_class(self) -> Test:
        is_negated = self.accept("^")
        tests: list[Test] = []
        first = True
        while first or not self.accept("]"):
            first = False
            if self.accept("[:"):
                tests.append(self.posix())
                continue
            char = self.next()
            if char == "\\":
                char = self.next()
                if char.lower() in _CLASSES:
                    tests.append(self.escaped(char))
                    continue
                char = self.escaped_char(char)
            if self.peek("-") and not self.peek("-]"):
                self.accept("-")
                tests.append(self.range_from(char))
            else:
                tests.append(_literal(char, self.ignore_case))
        test = _either(tests)
        return _negated(test) if is_negated else test

    def posix(self) -> Test:
        name = self.until(":]")
        test = _POSIX.get(name.removeprefix("^"))
        if test is None:
            raise self.error(f"unknown class [:{name}:]")
        return _negated(test) if name.startswith("^") else test

    def range_from(self, low: str) -> Test:
        high = self.next()
        if high == "\\":
            high = self.escaped_char(self.next())
        if high < low:
            raise self.error(f"bad range {low}-{high}")
        if self.ignore_case:
            return lambda c: low <= c.lower() <= high or low <= c.upper() <= high
        return lambda c: low <= c <= high


def _line_anchor(char: str) -> Callable[[str, int], bool]:
    if char == "^":
        return lambda name, at: at == 0 or name[at - 1] == "\n"
    return lambda name, at: at == len(name) or name[at] == "\n"


class _Program:
    """A Thompson automaton: each state reads a character, or leads on without reading one."""

    def __init__(self, node: _Node) -> None:
        self.tests: list[Test | None] = []
        self.anchors: dict[int, Callable[[str, int], bool]] = {}
        self.next: list[list[int]] = []
        self.steps_count = 0
        self.end = self._state()
        self.start = self._build(node, self.end)

    def matches(self, name: str) -> bool:
        states = self._closure([self.start], name, 0)
        for at, char in enumerate(name):
            reached = [
                following
                for state in states
                if (test := self.tests[state]) is not None and test(char)
                for following in self.next[state]
            ]
            states = self._closure(reached, name, at + 1)
        return self.end in states

    def _closure(self, states: list[int], name: str, at: int) -> dict[int, None]:
        seen: dict[int, None] = {}
        stack = list(states)
        while stack:
            state = stack.pop()
            if state in seen:
                continue
            anchor = self.anchors.get(state)
            if anchor is not None and not anchor(name, at):
                continue
            seen[state] = None
            if self.tests[state] is None:
                stack.extend(self.next[state])
        return seen

    def _state(self, test: Test | None = None, following: list[int] | None = None) -> int:
        if len(self.tests) >= STATES_MAX:
            raise KafkaError(ErrorCode.invalid_regular_expression, "SubscribedTopicRegex is too large.")
        self.tests.append(test)
        self.next.append(following or [])
        return len(self.tests) - 1

    def _build(self, node: _Node, following: int) -> int:
        """The state from which `node` is read and then `following` reached. Built from the end."""
        self.steps_count += 1  # repetitions of nothing make no states, and must end too
        if self.steps_count > 10 * STATES_MAX:
            raise KafkaError(ErrorCode.invalid_regular_expression, "SubscribedTopicRegex is too large.")
        match node:
            case _Char():
                return self._state(node.test, [following])
            case _Anchor():
                state = self._state(None, [following])
                self.anchors[state] = node.holds
                return state
            case _Sequence():
                for part in reversed(node.parts):
                    following = self._build(part, following)
                return following
            case _Choice():
                return self._state(None, [self._build(option, following) for option in node.options])
            case _Repeat():
                return self._build_repeat(node, following)

    def _build_repeat(self, node: _Repeat, following: int) -> int:
        if node.at_most is None:
            loop = self._state(None, [following])
            self.next[loop].append(self._build(node.node, loop))
            entry = loop
        else:
            entry = following
            for _ in range(node.at_most - node.at_least):
                entry = self._state(None, [self._build(node.node, entry), following])
        for _ in range(node.at_least):
            entry = self._build(node.node, entry)
        return entry
