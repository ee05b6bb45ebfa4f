"""The notes of outputs that an erasure of a topic goes by: listed, and forgotten one by one.

Invariant  an output is forgotten by its id alone, and what it was is told.
"""

from varve.foundation.errors import NotFound
from varve.jobs.erase.places import Places
from varve.jobs.outputs.notes import Output, Outputs


def list_outputs(places: Places, topic: str) -> list[Output]:
    """All that is noted of a topic, by id; raises NotFound for a topic that is nowhere."""
    found = _find(places, topic)
    return [found[id][0] for id in sorted(found)]


def forget_output(places: Places, topic: str, id: str) -> Output:
    """Forgets an output that is gone for good: no erasure looks for it any more."""
    found = _find(places, topic)
    if id in found:
        output, books = found[id]
        for book in books:
            book.forget(output)
        return output
    known = ", ".join(found) or "none"
    raise NotFound(f"topic {topic} has no note of an output {id!r:.80} (noted: {known:.400})")


def _find(places: Places, topic: str) -> dict[str, tuple[Output, list[Outputs]]]:
    """By id, with every book that has it: of several disks each may, noted at another time."""
    place = places.find(topic)
    found: dict[str, tuple[Output, list[Outputs]]] = {}
    for book in places.books():
        for one in book.find(place.name, place.topic_id):
            found.setdefault(one.id, (one, []))[1].append(book)
    return found
