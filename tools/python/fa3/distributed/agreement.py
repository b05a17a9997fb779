"""What ranks tell each other about a call before they send tensors, so that all of them raise where one must, and none
waits for what is never sent. It goes through the group's store, between hosts alone: a rank that refuses a call says so
and waits for nobody, and no GPU waits.

A note is a JSON object: of what must be the same on all ranks, as text by name; or of an error. In a pair of groups the
ranks inside tell each other first, then those across tell what came of it. Ranks count the notes of a group, so that
none is taken for that of another call."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import weakref

import torch.distributed as dist

import fa3

KEPT = 256  # notes that the ranks of a group agreed on
LONGEST = 200  # characters of one text
_ERRORS = {x.__name__: x for x in (ValueError, TypeError, NotImplementedError, fa3.InvalidArgument, fa3.Unsupported)}

_counts: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # by group
_agreed: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # by the group across, and the one inside


def note(**shared) -> str:
    """Of what must be the same on all ranks."""
    return json.dumps({name: _short(repr(x)) for name, x in shared.items()})


def _short(text):
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}... (SHA-256 {hashlib.sha256(text.encode()).hexdigest()})"


def _note_of_error(kind, text, rank=None, status=0):
    """rank: the one that refused the call; None if ranks differ."""
    return json.dumps({"error": kind, "text": text, "rank": rank, "status": status})


def _raise(found):
    kind = _ERRORS.get(found["error"], RuntimeError)
    error = kind(found["text"], found["status"]) if issubclass(kind, fa3.Fa3Error) else kind(found["text"])
    raise error from (None if found["rank"] is None else RuntimeError(f"rank {found['rank']} refused the call"))


# ---- one group ----


def _store(group):
    return dist.distributed_c10d._get_process_group_store(group)


def _timeout(group):
    """After which its ranks wait no longer for one that does not come."""
    backends = [group._get_backend(device) for device in getattr(group, "_device_types", ())]
    options = [getattr(backend, "options", None) for backend in backends]
    return max((x._timeout for x in options if x is not None), default=_store(group).timeout)


def _key(number, rank):
    return f"fa3/{number}/{rank}"


def _tell(team, text):
    """The number of this note."""
    _counts[team.group] = number = _counts.get(team.group, 0) + 1
    _store(team.group).set(_key(number, team.rank), text)
    return number


def _hear(team, number):
    """The notes of all ranks with this number."""
    store, keys, timeout = _store(team.group), [_key(number, rank) for rank in range(team.size)], _timeout(team.group)
    try:
        store.wait(keys, timeout)
    except RuntimeError as error:
        late = [rank for rank, key in enumerate(keys) if not store.check([key])]
        raise RuntimeError(f"ranks {late} of the group did not come to the call within {timeout}") from error
    notes = [x.decode() for x in store.multi_get(keys)]
    store.delete_key(_key(number - 1, team.rank))  # who told this note has read those before it
    return notes


def _merged(notes, ranks):
    """The note that all ranks told, or that of an error. ranks: their numbers among all."""
    found = [json.loads(x) for x in notes]
    for text, x in zip(notes, found):
        if "error" in x:
            return text
    for rank, other in zip(ranks, found):
        for name in {**found[0], **other}:
            a, b = found[0].get(name), other.get(name)
            if a != b:
                text = f"{name} is {a} on rank {ranks[0]}, but {b} on rank {rank}, must be the same on all ranks"
                return _note_of_error("ValueError", text)
    return notes[0]


# ---- all ranks ----


def refuse(ranks, error):
    """Tells the others of an error that this rank is about to raise."""
    text = _note_of_error(type(error).__name__, str(error), ranks.rank, getattr(error, "status", 0))
    with contextlib.suppress(RuntimeError):  # of a store that is gone: the other error is what counts
        for team in (ranks.inside, ranks.across):
            if team.size > 1:
                _tell(team, text)


def reach(ranks, text, always):
    """Returns when all ranks have told this note; else all raise the same. always: also where they did so before."""
    if ranks.size == 1:
        return
    agreed, size = _agreed_by(ranks), ranks.inside.size
    if text in agreed and not always:
        return
    merged, first = text, ranks.across.rank * size
    for team, numbers in ((ranks.inside, range(first, first + size)), (ranks.across, range(0, ranks.size, size))):
        if team.size > 1:
            merged = _merged(_hear(team, _tell(team, merged)), numbers)
    found = json.loads(merged)
    if "error" in found:
        _raise(found)
    agreed[text] = None
    while len(agreed) > KEPT:
        agreed.popitem(last=False)


def _agreed_by(ranks):
    """Their notes, oldest first. All ranks of the group have the same ones at any time: what is in here, and what is
    forgotten, hangs on nothing but the notes themselves, so a call that is new to one rank is new to all."""
    across, inside = ranks.across.group, ranks.inside.group
    inside = across if inside is None else inside
    try:
        return _agreed[across][inside]
    except KeyError:
        return _agreed.setdefault(across, weakref.WeakKeyDictionary()).setdefault(inside, collections.OrderedDict())
