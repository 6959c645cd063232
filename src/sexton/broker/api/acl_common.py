"""What the three APIs of access control lists answer: there are none, as in a Kafka without an authorizer.

They are offered all the same. MirrorMaker 2, AKHQ, KafkaJS and Sarama ask, understand SECURITY_DISABLED, and go on; an
API that is missing is an error to them."""

from __future__ import annotations

from typing import Any, Final

from sexton.protocol.errors import ErrorCode

SECURITY_DISABLED: Final[dict[str, Any]] = {
    "error_code": ErrorCode.security_disabled,
    "error_message": "Sexton has no access control lists: every client may do everything",
}
