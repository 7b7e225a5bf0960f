"""What nodes ask each other: a question has a name and arguments, the answer is what JSON can hold.

`Broker.questions` says who answers what; a coordinator carries question and answers (`Coordinator.ask_all`). An answer
is given or it isn't: a node that fails, is silent or says too much is told as such, and the others' answers stand.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import Any, NamedTuple

from broker import logs

SECONDS = 2.0  # that nodes may take to answer, unless told otherwise

Arguments = dict[str, Any]
Questions = dict[str, Callable[[Arguments], Any | Awaitable[Any]]]

log = logs.get("flockmq.questions")


class Answer(NamedTuple):
    """What a node said."""

    value: Any
    failure: str = ""  # why there is no value


SILENT = Answer(None, "the node did not answer in time")


async def gather(nodes: Mapping[str, asyncio.Future[Answer]], seconds: float) -> dict[str, Answer]:
    """What these nodes say within the time; of the others, that they are silent."""
    try:
        await asyncio.wait(nodes.values(), timeout=seconds)
        return {node: future.result() if future.done() else SILENT for node, future in nodes.items()}
    finally:
        for future in nodes.values():
            future.cancel()  # nobody waits for it any more


async def answer(questions: Questions, question: str, arguments: Arguments) -> Answer:
    """This node's answer."""
    find = questions.get(question)
    if find is None:
        return Answer(None, "this node does not know the question: is it of an older version?")
    try:
        value = find(arguments)
        return Answer(await value if isawaitable(value) else value)
    except Exception:
        log.exception("internal error: a question could not be answered", question=question)
        return Answer(None, "the node failed to answer; its log says why")
