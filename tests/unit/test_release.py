"""Which phone gets which release, and what a signature covers."""

import hashlib
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intentloop.errors import ContractError
from intentloop.release import (
    BaseArtefact,
    Manifest,
    ReleaseFile,
    Rollout,
    artefact_sha256,
    check_base,
    signed_bytes,
    version_for,
)

MANIFEST = Manifest(
    version="v2",
    previous="v1",
    base_model="tiny",
    prompt_version="p1",
    engine="mnn",
    quantiser="awq",
    layers_dropped=(3, 5),
    files=(ReleaseFile(name="llm.mnn", size_bytes=3, sha256="a", md5="b"),),
    artefact_bytes=3,
    min_free_bytes=10,
    measured=None,
    steps=(),
    lineage={"b": "2", "a": "1"},
    reason="原因",
    created_at_ms=7,
)
users = st.text(min_size=1, max_size=40)
shares = st.floats(min_value=0, max_value=1)


def test_without_a_previous_release_everybody_runs_the_one_there_is() -> None:
    assert version_for("u", Rollout(version="v1", previous="", share=0.0)) == "v1"


@given(users)
def test_a_share_of_nothing_or_all_is_exactly_that(user: str) -> None:
    assert version_for(user, Rollout(version="v2", previous="v1", share=0.0)) == "v1"
    assert version_for(user, Rollout(version="v2", previous="v1", share=1.0)) == "v2"


@given(users, shares, shares)
def test_a_growing_share_never_takes_a_release_away(user: str, one: float, other: float) -> None:
    small, large = sorted((one, other))
    before = version_for(user, Rollout(version="v2", previous="v1", share=small))
    after = version_for(user, Rollout(version="v2", previous="v1", share=large))
    assert (before, after) != ("v2", "v1")


def test_a_user_s_place_is_53_bits_of_a_hash_of_release_and_user() -> None:
    digest = hashlib.sha256(b"v2\x00user-7").digest()
    place = (int.from_bytes(digest[:8], "big") >> 11) / 2**53  # by hand, as the docstring says
    assert version_for("user-7", Rollout(version="v2", previous="v1", share=place)) == "v1"
    assert version_for("user-7", Rollout(version="v2", previous="v1", share=place + 2**-50)) == "v2"


def test_the_share_is_kept_over_many_users_and_drawn_anew_for_each_release() -> None:
    names = [f"user-{number}" for number in range(20_000)]
    chosen = {name for name in names if version_for(name, Rollout(version="v2", previous="v1", share=0.1)) == "v2"}
    assert abs(len(chosen) - 2_000) < 5 * (20_000 * 0.1 * 0.9) ** 0.5  # five standard deviations
    again = {name for name in names if version_for(name, Rollout(version="v3", previous="v1", share=0.1)) == "v3"}
    assert abs(len(chosen & again) - 200) < 5 * (20_000 * 0.01 * 0.99) ** 0.5


def test_the_signature_covers_everything_but_itself() -> None:
    signed = msgspec.structs.replace(MANIFEST, signature="abc")
    assert signed_bytes(signed) == signed_bytes(MANIFEST)
    assert json.loads(signed_bytes(MANIFEST))["signature"] == ""
    for name, value in (("version", "v3"), ("min_free_bytes", 11), ("lineage", {"a": "1"}), ("reason", "")):
        assert signed_bytes(msgspec.structs.replace(MANIFEST, **{name: value})) != signed_bytes(MANIFEST), name


def test_the_signed_bytes_do_not_depend_on_the_order_of_a_mapping() -> None:
    other = msgspec.structs.replace(MANIFEST, lineage={"a": "1", "b": "2"})
    assert signed_bytes(other) == signed_bytes(MANIFEST)
    text = signed_bytes(MANIFEST).decode()
    assert text.index('"artefact_bytes"') < text.index('"base_model"') < text.index('"version"')


def test_an_adapter_runs_beside_the_very_release_it_names_and_no_other() -> None:
    named = BaseArtefact(version="v2", sha256=artefact_sha256(MANIFEST.files))
    adapter = msgspec.structs.replace(MANIFEST, version="v3", kind="adapter", base=named)
    check_base(adapter, MANIFEST)
    other_file = ReleaseFile(name="llm.mnn", size_bytes=3, sha256="z", md5="b")
    for wrong in (
        msgspec.structs.replace(MANIFEST, files=(other_file,)),
        msgspec.structs.replace(MANIFEST, version="v1"),
        msgspec.structs.replace(adapter, version="v2"),
    ):
        with pytest.raises(ContractError, match="needs the full release v2 with SHA-256"):
            check_base(adapter, wrong)
    with pytest.raises(ContractError, match="names no base"):
        check_base(MANIFEST, MANIFEST)


def test_the_hash_of_an_artefact_is_that_of_its_files_in_any_order() -> None:
    two = ReleaseFile(name="a", size_bytes=1, sha256="c", md5="")
    expected = hashlib.sha256(b'[["a","c"],["llm.mnn","a"]]').hexdigest()
    assert artefact_sha256((two, *MANIFEST.files)) == artefact_sha256((*MANIFEST.files, two)) == expected


def test_the_signature_covers_which_base_an_adapter_needs() -> None:
    named = BaseArtefact(version="v2", sha256="x")
    adapter = msgspec.structs.replace(MANIFEST, kind="adapter", base=named)
    assert signed_bytes(adapter) != signed_bytes(msgspec.structs.replace(adapter, base=None))
    assert signed_bytes(adapter) != signed_bytes(msgspec.structs.replace(adapter, kind="full"))
