"""A migration: all state of a stopped broker from one place to another, once.

The steps, each of which is whole or not at all:

1. The target is marked as *arriving*: no node uses it. The state is written, and is durable.
2. The source is marked as *moved*: no node uses it. Its state stays there, and can be restored.
3. The mark of the target is removed: nodes use it.

A command that was killed before step 2 has changed nothing at the source; repeated, it begins again. One that was
killed between steps 2 and 3 left both places closed to nodes; repeated, it does step 3.
"""

import secrets
from collections.abc import Callable
from shlex import quote

from ...broker.errors import FlockError
from .endpoints import Mark, Place, Source, Stage

NOTHING = "nothing to move"
BACKUP = "the backup "  # in the mark of a restore, before the path of the file


def migrate(source: Source, target: Place, warn: Callable[[str], object]) -> str:
    """Move all state; returns what was done, as a sentence.

    Args:
        source, target: the places.
        warn: called with sentences about what stays behind.

    Raises:
        FlockError: a place can't be used, or the target has state.
    """
    with source.opened(create=False) as exists:
        if not exists:
            return f"{NOTHING}: there is no {source.name}"
        if source.mark.stage == Stage.ARRIVING:
            raise unfinished(source)
        state = None
        if source.mark.stage == Stage.OWN:
            state = source.read()
            if state.is_empty and not source.access():
                return f"{NOTHING}: {source.name} is empty"
        with target.opened(create=state is not None) as found:
            if state is None:
                return go_on(source, target, found)
            check_target(source, target)
            for sentence in source.losses():
                warn(sentence)
            number, options = secrets.token_hex(8), source.options + target.options  # one has some
            moved = target.write(state, source.access(), Mark(Stage.ARRIVING, number, source.name, options))
            source.set_mark(Mark(Stage.MOVED, number, target.name, options))
            target.set_mark(Mark(Stage.OWN, number, source.name, options))
            return f"moved from {source.name} to {target.name}{target.options}: {moved}"


def go_on(source: Source, target: Place, found: bool) -> str:
    """The source was moved away before: to this target, or the command is wrong."""
    if not found or target.mark.id != source.mark.id:
        raise FlockError(
            f"the state of {source.name} was moved to {source.mark.place}{source.mark.options} before",
            f"move it on from there, or `flockmq migrate --restore {quote(source.name)}{source.options}` makes the "
            "state of that time valid again",
        )
    if target.mark.stage == Stage.MOVED:
        raise FlockError(
            f"the state of {source.name} was moved to {target.name}, and from there to {target.mark.place}",
            "move it on from there",
        )
    if target.mark.stage == Stage.ARRIVING:
        source.set_mark(source.mark)  # of several shards, those that have none yet
        target.set_mark(target.mark._replace(stage=Stage.OWN))
        return f"moved from {source.name} to {target.name}{target.options}: an interrupted migration is complete"
    return f"{NOTHING}: {source.name} was moved to {target.name} before"


def check_target(source: Source, target: Place) -> None:
    """Raise FlockError if the target has state, or a part of another source's."""
    if target.mark.stage == Stage.ARRIVING and target.mark.place != source.name:
        raise unfinished(target)
    if target.has_state:
        raise FlockError(
            f"{target.name}{target.options} has state already, which would be lost",
            "choose another place or --prefix; or end that broker's data first: move its file away, or delete its keys",
        )


def unfinished(place: Source) -> FlockError:
    """A migration or a restore to this place was interrupted."""
    if place.mark.place.startswith(BACKUP):
        return FlockError(
            f"a restore of {place.mark.place} to {place.name} has not ended",
            "repeat it as it was, or delete the keys",
        )
    return FlockError(
        f"a migration from {place.mark.place} to {place.name} has not ended",
        f"`flockmq migrate {quote(place.mark.place)} {quote(place.name)}{place.mark.options}` completes it; or move "
        "the file away, or delete the keys: until it has ended, all state is still at its source",
    )


def restore(place: Place) -> str:
    """Make the state of a place valid again that was moved away; returns what was done, as a sentence.

    Raises:
        FlockError: its state was not moved away.
    """
    with place.opened(create=False) as exists:
        if not exists or place.mark.stage != Stage.MOVED:
            raise FlockError(f"the state of {place.name} was not moved away", "there is nothing to restore")
        elsewhere = place.mark.place
        place.set_mark(Mark(Stage.OWN))
        return (
            f"restored {place.name}{place.options}, as it was when it was moved; serve this state, or that at "
            f"{elsewhere}, but not both"
        )
