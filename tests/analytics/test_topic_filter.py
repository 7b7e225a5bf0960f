"""Topic filters of the source, held against the model that judges the broker's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flockmq.cluster.analytics.topic_filter import TopicFilters, check_topic_filter, matches
from tests.model import topics as model

names = st.lists(st.sampled_from(["", "a", "b", "$x"]), min_size=1, max_size=4).map("/".join).filter(bool)
filters = st.lists(st.sampled_from(["", "a", "b", "$x", "+", "#", "a+", "#b"]), min_size=1, max_size=4).map("/".join)


@given(filters, names)
def test_matches_as_the_model_does(topic_filter: str, name: str) -> None:
    if not model.is_topic_filter(topic_filter.encode()):
        with pytest.raises(ValueError, match="topic filter"):
            check_topic_filter(topic_filter)
        return
    assert matches(check_topic_filter(topic_filter), name) == model.matches(topic_filter, name)


@given(st.lists(filters.filter(lambda one: model.is_topic_filter(one.encode())), max_size=3), names)
def test_any_of_several(several: list[str], name: str) -> None:
    known = TopicFilters(several)
    expected = any(model.matches(one, name) for one in several)
    assert [known.matches(name), known.matches(name)] == [expected, expected]
