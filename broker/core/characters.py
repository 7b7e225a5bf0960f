"""Characters that the standard says texts should not hold: control characters and non-characters [MQTT-1.5.3]."""

import re

LAST_OF_PLANES = "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
UNWANTED = re.compile(f"[\x01-\x1f\x7f-\x9f\ufdd0-\ufdef{LAST_OF_PLANES}]")


def has_control_characters(text: str) -> bool:
    """Whether a text holds U+0001 to U+001F, U+007F to U+009F, or a non-character."""
    return UNWANTED.search(text) is not None
