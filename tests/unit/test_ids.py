"""Ids, buckets and the catalogue: the same for ever, and evenly spread."""

import hashlib

import pytest

from intentloop import catalogue, ids


def test_a_derived_id_names_its_source_position() -> None:
    assert ids.derived("sample", 3, 1042, 7) == "sample-3-1042-7"


def test_a_content_digest_is_the_head_of_sha256() -> None:
    assert ids.content_digest("帐篷") == hashlib.sha256("帐篷".encode()).hexdigest()[:32]


def test_buckets_are_even_and_differ_by_salt() -> None:
    values = [ids.bucket(f"user-{number}", "rollout") for number in range(10_000)]
    assert all(0.0 <= value < 1.0 for value in values)
    assert sum(value < 0.1 for value in values) / 10_000 == pytest.approx(0.1, abs=0.01)
    assert ids.bucket("user-1", "rollout") != ids.bucket("user-1", "golden")


def test_items_of_one_numeric_category_share_a_leaf() -> None:
    first, second = catalogue.dress_item("1", "2520377"), catalogue.dress_item("2", "2520377")
    assert first[1] == second[1]
    assert catalogue.dress_item("1", "2520377") == first
    leaf = first[1].split(".")[-1]
    assert first[0].endswith(leaf)


def test_the_catalogue_has_three_levels_and_no_leaf_twice() -> None:
    leaves = [leaf for _, _, leaf in catalogue.LEAVES]
    assert len(leaves) == len(set(leaves)) == 96
    assert len(catalogue.TREE) == 8
