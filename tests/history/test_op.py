from __future__ import annotations

from sexton.history.op import F, Op, Send, Type


def test_whatever_is_not_an_invocation_is_a_completion() -> None:
    sends = (Send(5, 1),)
    types = {type_: Op(0, 0, 0, type_, F.SEND, sends).is_completion for type_ in Type}
    assert types == {Type.INVOKE: False, Type.OK: True, Type.FAIL: True, Type.INFO: True}
