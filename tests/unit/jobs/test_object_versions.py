"""Which versions of a bucket go, in which order, and what is told of the others."""

from collections.abc import Iterator
from typing import cast

from varve.foundation.errors import StoreDenied
from varve.jobs.object_versions import ErasedVersions, erase_versions
from varve.object_store.s3_versions import ObjectVersion, S3Versions

A1 = ObjectVersion("a", "1", is_latest=False, is_marker=False)
A2 = ObjectVersion("a", "2", is_latest=True, is_marker=True)
B1 = ObjectVersion("b", "1", is_latest=False, is_marker=False)
B2 = ObjectVersion("b", "2", is_latest=True, is_marker=True)
NEW = ObjectVersion("new", "2", is_latest=True, is_marker=False)
OLD = ObjectVersion("new", "1", is_latest=False, is_marker=False)


class Bucket:
    """Versions in a list; those of a locked key are not let go."""

    name = "s3://bucket"

    def __init__(self, *kept: ObjectVersion, locked: str = "") -> None:
        self.kept = list(kept)
        self._locked = locked

    def find(self, prefix: str) -> Iterator[ObjectVersion]:
        return iter([one for one in self.kept if one.key.startswith(prefix)])

    def delete(self, version: ObjectVersion) -> None:
        if version.key == self._locked:
            raise StoreDenied("a retention lock holds it")
        self.kept.remove(version)


def erase(bucket: Bucket, *removed: str) -> ErasedVersions:
    return erase_versions(
        cast(S3Versions, bucket),
        "",
        is_removed=lambda key: key in removed,
        is_data=lambda key: True,
    )


def test_markers_go_behind_the_versions_that_they_hide() -> None:
    done = erase(Bucket(A2, A1, B2, B1), "a", "b")
    assert [one.is_marker for one in done.removed] == [False, False, True, True]
    assert done.out_of_reach == ()


def test_an_object_that_is_there_keeps_its_versions_and_they_are_told() -> None:
    bucket = Bucket(NEW, OLD)
    done = erase(bucket, "new")
    assert (bucket.kept, done.removed) == ([NEW, OLD], ())
    assert "keeps 1 older versions" in done.out_of_reach[0]


def test_what_a_lock_holds_keeps_its_marker_and_others_go() -> None:
    bucket = Bucket(A2, A1, B2, B1, locked="a")
    done = erase(bucket, "a", "b")
    assert bucket.kept == [A2, A1], "without the marker the object would be there again"
    assert set(done.removed) == {B1, B2}
    (told,) = done.out_of_reach
    assert "a retention lock holds it" in told
