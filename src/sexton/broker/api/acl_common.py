"""Response of the three ACL APIs: SECURITY_DISABLED, as from a Kafka without an authorizer.

The APIs are offered all the same. MirrorMaker 2, AKHQ, KafkaJS and Sarama call them, understand SECURITY_DISABLED, and
go on; if the API were missing they would fail.
"""

from __future__ import annotations

from typing import Any, Final

from sexton.protocol.errors import ErrorCode

SECURITY_DISABLED: Final[dict[str, Any]] = {
    "error_code": ErrorCode.security_disabled,
    "error_message": "Sexton has no access control lists: every client may do everything",
}
