"""Changes of parcels as apps make them: new ones, new states of old ones, some that go."""

import random
from typing import Final

from tests.support.shape_topic import ShapeTopic

STATES: Final = ("waiting", "moving", "arrived")
_TOWNS: Final = ("Ulm", "Åbo", "Split", 'Sault "Ste" Marie', "L'Aquila", "水戸")


class Traffic:
    """Writes changes to a topic, the same ones for the same seed."""

    def __init__(self, topic: ShapeTopic, seed: int = 1) -> None:
        self._topic = topic
        self._random = random.Random(seed)
        self._made = 0

    def add(self, count: int) -> None:
        """New parcels."""
        for _ in range(count):
            self._made += 1
            self._topic.put(f"p/{self._made}", self._parcel())
        self._topic.flush()

    def change(self, count: int) -> None:
        """Changes of every kind: most are updates of one column, every tenth a delete."""
        for _ in range(count):
            chance = self._random.random()
            keys = list(self._topic.state)
            if not keys or chance < 0.1:
                self._made += 1
                self._topic.put(f"p/{self._made}", self._parcel())
                continue
            key = self._random.choice(keys)
            if chance < 0.2:
                self._topic.delete(key)
            else:
                state = self._random.choice(STATES)
                self._topic.put(key, {**self._topic.state[key], "state": state})
        self._topic.flush()

    def _parcel(self) -> dict[str, object]:
        return {
            "state": self._random.choice(STATES),
            "town": self._random.choice(_TOWNS),
            "grams": self._random.randrange(100, 30_000),
            "is_fragile": self._random.random() < 0.5,
            "note": None if self._random.random() < 0.5 else "line\nbreak",
            "route": {"stops": [1, 2.5, "x"]},
        }
