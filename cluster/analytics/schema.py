"""The rows of the analytics."""

MESSAGES = (
    "node string, accepted_at timestamp, client_id string, topic string, qos int, retain boolean, dup boolean, "
    "payload binary, properties binary"
)
