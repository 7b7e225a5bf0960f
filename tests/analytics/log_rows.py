"""Rows of the log of messages, made up by hypothesis."""

from hypothesis import strategies as st

from tests.model.log_block import Row

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
rows = st.builds(
    Row,
    accepted=st.integers(0, 1 << 53),
    client_id=names,
    topic=names,
    qos=st.integers(0, 2),
    retain=st.booleans(),
    dup=st.booleans(),
    payload=st.binary(max_size=40),
    properties=st.none() | st.binary(min_size=1, max_size=20),
)
