"""Every public fault that the product must survive has a test, by name; the catalogue of faults is not part of it."""

import ast
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CATALOGUE = ROOT.parent / "shared" / "cases" / "faults.jsonl"

ANSWER = "tests/unit/core_workers/test_answer.py"
TEACHERS = "tests/integration/workers/test_teachers.py"
LABEL = "tests/integration/workers/test_label.py"
JOBS = "tests/integration/workers/test_jobs.py"
TRAINING = "tests/integration/workers/test_training_store.py"
INTAKE = "tests/unit/core_gateway/test_intake.py"
SORT = "tests/unit/gateway/test_sort_batch.py"
BODY = "tests/unit/gateway/test_read_body.py"
TELEMETRY = "tests/integration/gateway/test_telemetry.py"
FOLD = "tests/unit/core_streams/test_fold.py"
TIMELINE = "tests/unit/core_streams/test_timeline.py"
INFERENCE = "tests/unit/core_streams/test_inference.py"
ACCOUNTS = "tests/unit/signals/test_account_switch.py"
APPLY = "tests/unit/streams/test_apply_batch.py"
WORKER = "tests/integration/streams/test_worker.py"
LIMITS = "tests/integration/streams/test_worker_limits.py"
TRANSPORT = "tests/integration/streams/test_transport.py"
DOORS = "tests/integration/streams/test_doors.py"
CRASHES = "tests/integration/streams/test_crashes.py"
REDIS_CRASHES = "tests/integration/streams/test_crashes_of_redis.py"
WHATEVER_REDIS_DOES = (
    f"{REDIS_CRASHES}::test_whatever_redis_does_the_states_counts_and_facts_are_those_of_a_straight_replay"
)
PIECES = "tests/integration/trainer/test_pieces.py"
LINE = "tests/integration/trainer/test_line.py"
PLANS = "tests/unit/trainer/test_plans.py"
OUTCOME = "tests/unit/trainer/test_outcome.py"

TESTS: dict[str, tuple[str, ...]] = {
    "L01": (f"{ANSWER}::test_l01_a_fenced_reply_reads_like_the_bare_one",),
    "L02": (f"{ANSWER}::test_l02_only_what_follows_the_thinking_counts",),
    "L04": (f"{TEACHERS}::test_l04_a_cut_reply_is_tried_again_with_more_room_and_booked",),
    "L06": (
        f"{TEACHERS}::test_l06_l10_wrong_settings_close_the_teacher_with_one_alarm",
        f"{LABEL}::test_l06_l11_a_closed_teacher_burns_no_sample_and_no_agreement_is_made_of_one",
        f"{TEACHERS}::test_what_providers_want_differently_is_sent_as_set_and_nothing_else",
    ),
    "L08": (
        f"{TEACHERS}::test_l08_a_filtered_sample_is_not_tried_again_and_trips_nothing",
        f"{LABEL}::test_l08_a_filtered_sample_goes_to_people_with_its_reason",
    ),
    "L10": (f"{TEACHERS}::test_l06_l10_wrong_settings_close_the_teacher_with_one_alarm",),
    "L11": (
        f"{TEACHERS}::test_l11_overload_is_waited_for",
        f"{TEACHERS}::test_l11_a_used_up_allowance_closes_the_teacher_until_its_reset",
        f"{LABEL}::test_l06_l11_a_closed_teacher_burns_no_sample_and_no_agreement_is_made_of_one",
    ),
    "L13": (f"{TEACHERS}::test_l13_throttling_pauses_all_calls_to_this_teacher",),
    "L14": (
        f"{TEACHERS}::test_l14_chunks_without_choices_are_no_accident",
        f"{TEACHERS}::test_l14_a_stream_without_its_end_is_cut_and_with_a_finish_reason_it_is_whole",
    ),
    "L16": (
        f"{TEACHERS}::test_l16_characters_split_over_chunks_arrive_whole",
        f"{ANSWER}::test_a_reply_with_lost_bytes_is_never_a_label",
    ),
    "L18": (
        f"{ANSWER}::test_l18_full_width_separators_read_alike",
        f"{ANSWER}::test_l18_browsing_with_keywords_is_a_format_fault",
    ),
    "L19": (f"{ANSWER}::test_l19_a_mended_keyword_must_be_found_in_what_was_read",),
    "L20": (
        f"{ANSWER}::test_l20_traditional_characters_agree_and_english_is_unknown",
        f"{LABEL}::test_l20_traditional_and_simplified_agree",
    ),
    "L22": (f"{TEACHERS}::test_l22_missing_usage_is_estimated_and_marked",),
    "T01": (
        f"{FOLD}::test_a_resent_batch_is_counted_once",
        f"{SORT}::test_t01_the_same_batch_again_becomes_the_same_events",
        f"{TELEMETRY}::test_t01_a_batch_that_is_sent_again_is_taken_again_with_the_same_events",
    ),
    "T04": (
        f"{TIMELINE}::test_a_clock_three_days_ahead_is_shifted_for_the_whole_batch_and_the_original_kept",
        f"{FOLD}::test_a_clock_days_ahead_does_not_move_the_user_into_the_future",
    ),
    "T05": (
        f"{TIMELINE}::test_without_sent_at_or_receipt_no_time_is_moved",
        f"{FOLD}::test_old_events_of_a_new_user_count_at_their_own_time",
    ),
    "T07": (
        f"{FOLD}::test_an_event_of_1970_is_set_aside_with_a_reason_and_the_rest_goes_on",
        f"{INTAKE}::test_t07_a_dwell_is_never_56_years",
    ),
    "T08": (
        f"{INTAKE}::test_t08_every_way_to_write_one_instant_is_that_instant",
        f"{INTAKE}::test_t08_and_t07_what_is_no_instant_is_refused",
    ),
    "T09": (
        f"{TIMELINE}::test_out_of_order_within_the_grace_is_not_late_and_beyond_it_is",
        f"{FOLD}::test_out_of_order_is_ordered_and_late_is_counted_late",
    ),
    "T10": (
        f"{TELEMETRY}::test_t10_a_bomb_is_refused_while_others_are_served_and_memory_stays",
        f"{BODY}::test_t10_a_bomb_is_stopped_at_the_cap_and_memory_stays_bounded",
        f"{TELEMETRY}::test_a_body_that_never_ends_is_cut_off_also_for_a_stranger",
    ),
    "T12": (
        f"{INTAKE}::test_t12_a_nul_is_removed_and_told",
        f"{SORT}::test_t12_a_nul_alone_does_not_slip_through_the_fast_way",
    ),
    "T14": (f"{INTAKE}::test_t14_a_lone_surrogate_is_replaced_and_a_whole_emoji_stays",),
    "T15": (
        f"{INTAKE}::test_t15_ids_survive_digit_for_digit",
        f"{INTAKE}::test_t15_what_is_not_finite_is_refused_with_its_field",
    ),
    "T16": (
        f"{SORT}::test_t16_three_are_accepted_and_one_is_set_aside_with_index_and_reason",
        f"{TELEMETRY}::test_t16_a_bad_event_goes_to_the_dead_letters_and_its_neighbours_go_on",
    ),
    "T17": (f"{INTAKE}::test_t17_a_new_app_version_is_understood_as_far_as_it_goes",),
    "T19": (
        f"{SORT}::test_t19_another_account_on_the_same_phone_gets_its_own_envelope",
        f"{ACCOUNTS}::test_the_window_is_cut_where_the_account_changes",
        f"{ACCOUNTS}::test_a_prompt_that_mixes_two_accounts_becomes_neither_sample_nor_trigger",
    ),
    "K01": (
        f"{WORKER}::test_bad_records_go_to_the_dead_letters_and_their_neighbours_go_on",
        f"{LIMITS}::test_k01_an_agent_that_stopped_turns_health_red",
    ),
    "K03": (f"{WORKER}::test_bad_records_go_to_the_dead_letters_and_their_neighbours_go_on",),
    "K04": (
        f"{TRANSPORT}::test_k04_a_commit_over_a_gap_loses_nothing",
        f"{APPLY}::test_a_gap_stops_the_worker",
    ),
    "K07": (
        f"{TRANSPORT}::test_k07_faust_still_keeps_its_place_in_the_group_while_the_agent_is_slow",
        f"{LABEL}::test_a_slow_job_keeps_its_lease",
        "tests/integration/workers/test_process.py"
        "::test_killed_again_and_again_no_sample_is_lost_or_labelled_twice_in_effect",
    ),
    "K08": (
        WHATEVER_REDIS_DOES,
        f"{APPLY}::test_records_that_retention_deleted_are_not_waited_for",
        f"{CRASHES}::test_k08_a_broker_whose_offsets_start_again_is_noticed_and_users_keep_their_states",
        "tests/unit/streams/test_confirm_log.py"
        "::test_records_of_another_log_end_the_worker_before_anything_follows_from_them",
    ),
    "K10": (
        f"{LIMITS}::test_k10_other_partitions_than_the_table_says_stop_the_worker_with_both_numbers",
        "tests/integration/gateway/test_outage.py"
        "::test_a_topic_with_other_partitions_ends_the_gateway_with_both_numbers",
    ),
    "K11": (
        f"{TELEMETRY}::test_k11_a_batch_too_large_for_one_message_is_refused_and_others_go_on",
        f"{SORT}::test_k11_too_many_events_are_refused_whole",
        "tests/unit/streams/test_fold_records.py::test_a_fact_too_large_for_the_broker_becomes_a_dead_letter",
    ),
    "K13": (f"{LIMITS}::test_k13_states_of_users_who_do_not_come_back_expire_also_after_a_restart",),
    "K14": (f"{LIMITS}::test_k14_workers_without_a_partition_are_healthy_and_take_over",),
    "R01": (
        f"{JOBS}::test_a_redis_that_may_evict_is_refused",
        f"{TRAINING}::test_a_lost_sample_is_noticed_before_training",
    ),
    "R02": (WHATEVER_REDIS_DOES, f"{TRAINING}::test_a_full_redis_refuses_and_nothing_is_half_done"),
    "R03": (
        f"{DOORS}::test_a_batch_is_applied_once_whole_and_a_lost_script_is_loaded_again",
        f"{JOBS}::test_a_lost_script_cache_is_not_noticed",
    ),
    "R05": (WHATEVER_REDIS_DOES, f"{JOBS}::test_a_primary_that_turns_read_only_for_a_moment_is_ridden_out"),
    "R07": (f"{TRAINING}::test_a_command_that_timed_out_and_ran_twice_counts_once",),
    "R08": (f"{JOBS}::test_a_job_of_a_killed_worker_is_taken_up_again",),
    "R11": (WHATEVER_REDIS_DOES,),
    "R12": (
        f"{JOBS}::test_a_redis_that_is_loading_is_waited_for",
        f"{JOBS}::test_a_redis_that_is_not_there_is_waited_for_and_never_taken_as_empty",
    ),
    "R13": (f"{TRAINING}::test_an_export_of_many_samples_lets_others_through",),
    "M01": (
        f"{PIECES}::test_pruned_layers_are_numbered_anew_and_every_list_is_cut",
        f"{PIECES}::test_a_layer_with_its_old_number_is_noticed",
    ),
    "M02": (
        f"{PIECES}::test_pruned_layers_are_numbered_anew_and_every_list_is_cut",
        f"{LINE}::test_a_pruned_model_loads_in_a_fresh_process",
    ),
    "M04": (
        f"{PIECES}::test_an_adapter_on_a_tied_embedding_is_refused",
        f"{LINE}::test_merging_and_healing_survive_a_reload",
    ),
    "M06": (
        f"{PIECES}::test_samples_with_nothing_to_learn_stop_the_run",
        f"{PIECES}::test_a_long_sample_loses_old_behaviour_and_never_its_answer",
    ),
    "M08": (
        f"{LINE}::test_prompts_of_calibration_and_device_are_the_template_of_the_base",
        f"{LINE}::test_no_answer_thinks_and_answers_end",
        f"{OUTCOME}::test_only_the_markup_of_thinking_is_thinking",
        f"{PIECES}::test_another_chat_template_is_refused",
    ),
    "M09": (
        f"{PIECES}::test_the_end_mark_stays_supervised_when_padding_is_the_same_token",
        f"{LINE}::test_no_answer_thinks_and_answers_end",
        f"{OUTCOME}::test_an_answer_that_did_not_end_is_a_fault_however_right_it_looks",
    ),
    "M11": (
        f"{LINE}::test_every_calibration_token_was_used",
        f"{PIECES}::test_a_calibration_sample_that_autoawq_passes_over_is_not_counted_as_used",
        f"{PIECES}::test_awq_scales_keep_what_the_model_says_in_whatever_order_samples_come",
    ),
    "M12": (
        f"{PLANS}::test_too_little_calibration_is_refused_before_minutes_are_spent",
        f"{PLANS}::test_every_calibration_token_is_used_and_no_row_holds_two_samples",
    ),
    "M14": (
        f"{INFERENCE}::test_exclamation_marks_are_degenerate_counted_by_version_and_never_a_sample",
        f"{LINE}::test_a_broken_phone_output_is_a_fault_and_never_browsing",
    ),
    "M16": (
        f"{LINE}::test_all_candidates_were_measured_before_one_was_chosen",
        f"{PLANS}::test_the_measured_best_wins_whatever_its_bits",
    ),
    "M17": (
        f"{PIECES}::test_evaluation_steps_are_clamped_to_the_run",
        f"{PIECES}::test_the_best_of_no_evaluation_is_an_error",
    ),
}
UNCOVERED: dict[str, str] = {}  # id → why there is no test yet


def functions_in(path: Path) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, kinds)}


@pytest.mark.parametrize("fault", TESTS)
def test_the_tests_of_a_fault_exist(fault: str) -> None:
    assert TESTS[fault]
    for node in TESTS[fault]:
        file, _, name = node.partition("::")
        assert (ROOT / file).is_file(), f"{fault} names {file}, which is not there"
        assert name in functions_in(ROOT / file), f"{fault} names {name}, which is not in {file}"


def test_every_fault_of_the_catalogue_is_tested_or_excused() -> None:
    if not CATALOGUE.is_file():
        pytest.skip("the catalogue of public faults is not here")
    known = {json.loads(line)["id"] for line in CATALOGUE.read_text("utf-8").splitlines() if line.strip()}
    assert len(known) > 50
    assert known == TESTS.keys() | UNCOVERED.keys()
    assert not TESTS.keys() & UNCOVERED.keys()
    assert all(UNCOVERED.values()), "an uncovered fault says why"
