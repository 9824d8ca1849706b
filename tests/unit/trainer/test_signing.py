"""Signatures of manifests: any change of any byte that a phone relies on is noticed."""

import msgspec
import pytest

from intentloop.adapters import signing
from intentloop.errors import ConfigurationError
from intentloop.release import BaseArtefact, Manifest, ReleaseFile

FILE = ReleaseFile(name="llm.mnn", size_bytes=3, sha256="a" * 64, md5="b" * 32)


def manifest() -> Manifest:
    return Manifest(
        version="v2-01234567",
        previous="v1-89abcdef",
        base_model="tiny",
        prompt_version="p1",
        engine="MNN 3.6.1",
        quantiser="rtn",
        layers_dropped=(3,),
        files=(FILE,),
        artefact_bytes=3,
        min_free_bytes=10,
        measured=None,
        steps=(),
        lineage={"base": "x"},
        reason="test",
        created_at_ms=1,
    )


PRIVATE, PUBLIC = signing.generate_keys()


def test_a_signed_manifest_verifies_also_after_a_trip_through_json() -> None:
    signed = signing.sign(manifest(), PRIVATE)
    again = msgspec.json.decode(msgspec.json.encode(signed), type=Manifest)
    assert signing.verify(signed, PUBLIC)
    assert signing.verify(again, PUBLIC)


@pytest.mark.parametrize("field", [name for name in Manifest.__struct_fields__ if name != "measured"])
def test_a_change_of_any_field_breaks_the_signature(field: str) -> None:
    signed = signing.sign(manifest(), PRIVATE)
    value = getattr(signed, field)
    other_base = BaseArtefact(version="v1", sha256="c" * 64)
    forged = {str: "forged", int: 99, tuple: (), dict: {"base": "y"}, type(None): other_base}[type(value)]
    if value == forged:
        forged = (7,)
    assert not signing.verify(msgspec.structs.replace(signed, **{field: forged}), PUBLIC)


def test_another_key_does_not_verify() -> None:
    assert not signing.verify(signing.sign(manifest(), PRIVATE), signing.generate_keys()[1])


@pytest.mark.parametrize("signature", ["", "no base64!", "AAAA"])
def test_nonsense_is_no_signature(signature: str) -> None:
    assert not signing.verify(msgspec.structs.replace(manifest(), signature=signature), PUBLIC)


def test_a_key_of_the_wrong_shape_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="32 bytes"):
        signing.sign(manifest(), "c2hvcnQ=")
