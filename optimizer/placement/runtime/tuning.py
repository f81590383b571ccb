"""The numbers that tune the search, read once from ``config/planner.toml``, which says what each does."""

from __future__ import annotations

import tomllib
from typing import Annotated

from msgspec import Meta, Struct, convert

from broker.data_folder import data_folder

CONFIG = data_folder("config") / "planner.toml"

Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
NotNegative = Annotated[float, Meta(ge=0)]


class Baselines(Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of the room ``baselines``."""

    least_work_s: Positive
    group_share: Share
    simple_share: Share
    group_s_each: Positive
    bound_s_each: Positive
    pool_bound_s_each: Positive
    placed_s: Positive
    fleet_s: Positive
    placed_group_s: Positive
    most_runs_tried: Count


class Columns(Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of the room ``columns``."""

    most_ends: Count
    reach_s: Count
    closed_share: Share
    kept_prices: Count
    few_candidates: Count
    runs_at_prices: Count
    first_step_share: Share
    least_step_share: Share
    shortest_way_share: Share
    worth_share: Share
    most_relaxations: Count
    kept_options: Count
    kept_offers: Count
    kept_cheapest: Count
    kept_fastest: Count
    kept_leading: Count
    kept_at_window: Count
    lean_offers: Count
    lean_cheapest: Count
    lean_fastest: Count
    most_sorted: Count
    most_starts: Count
    start_rounds: Count


class Explain(Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of the room ``explain``."""

    next_best: Count
    most_alternatives: Count
    most_wishes: Count
    most_scarce: Count
    most_moved: Count
    least_saved_usd: Positive
    most_community_groups: Count
    most_named: Count
    most_cheaper: Count
    least_told: Count
    most_fixes: Count
    most_trials: Count
    most_changes: Count
    much_cheaper_share: Share
    most_rivals: Count
    most_known_fleets: Count
    most_fewer_pools: Count
    looser_objectives: tuple[Positive, ...]
    most_zones_tried: Count
    least_traffic_share: Share
    traffic_error_share: Share
    most_run_ties: Count
    most_followed: Count
    time_worth_share: Share
    most_trial_candidates: Count
    most_trial_columns: Count
    least_trials: Count
    unit_hour_s: Positive
    run_s: Positive
    least_tried: Count


class Fleets(Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of the room ``fleets``."""

    tolerance_share: Share
    bound_steps: Count
    rate_groups: Count
    branch_steps: Count
    many_branch_steps: Count
    most_branches: Count
    enough: Positive
    more_units: Count
    lane_levels: Count
    best_each: Count
    near_price: Positive
    lane_search_s: Positive
    most_eras: Count
    most_lanes: Count
    least_route_share: Share
    few_covers: Positive
    many_covers: Positive
    close_share: Share
    close_of_many_share: Share
    last_level_work: Count
    few_units: Count
    term_pools: Count
    few_ends: Count
    most_exact: Count
    fleets_kept: Count
    rivals_kept: Count
    most_searches: Count
    first_pools: Count
    first_of_branch: Count
    first_count: Count
    first_tried_of_terms: Count
    most_sets: Count
    most_kept: Count
    most_unbranched: Count
    most_unbranched_of_many: Count
    most_priced: Count
    most_priced_states: Count
    walk_states: Count
    most_tried: Count
    bands_charged: tuple[Count, ...]
    few_pools: Count
    most_work_fewer: Count
    most_between: Count
    most_work: Count
    most_work_of_many: Count
    most_levels: Count
    same_rate_share: Share
    most_units: Count
    first_units: Count
    hurried_units: Count
    term_units: Count
    wide_units: Count
    ample: Positive
    most_states: Count
    most_exact_states: Count
    bands: Count
    least_term_s: Count
    longest_rest_h: Positive


class Pipeline(Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of the face, ``pipeline``."""

    least_telling_s_each: Positive
    baseline_share: Share
    baseline_s: Positive
    s_of_baseline_work: Positive
    telling_share: Share
    telling_s_each: Positive
    s_a_trial: Positive
    trial_s: Positive
    most_telling_share: Share
    checking_s_each: Positive
    most_checking_share: Share
    explain_share: Share
    hosts_share: Share
    ties_share: Share
    fixes_share: Share
    least_services: Count
    least_s: Positive


class Problem(Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of the room ``problem``."""

    most_nodes: Count
    objective_steps: Count
    objective_refinements: Count
    few_spans: Count


class Replan(Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of the room ``replan``."""

    prove_share: Share
    repair_share: Share


class Runs(Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of the room ``runs``."""

    any_part_steps: Count
    most_of_all: Count
    least_of_each: Count
    few_split: Count
    few_candidates: Count
    short: Count
    most_branches: Count
    most_batches: Count
    most_joint_stretches: Count
    most_edges: Count
    shorter_shares: tuple[Share, ...]
    part_charge_shares: tuple[Share, ...]
    most_stretches: Count
    most_steps: Count
    most_ways: Count
    most_batch_nodes: Count
    least_part_share: Share
    most_windows: Count
    most_free: Count
    least_splits: Count
    most_splits: Count
    most_of_all_splits: Count
    most_recourses: Count
    most_lengths: Count
    most_instants: Count
    few_stretched: Count


class Runtime(Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of the room ``runtime``."""

    measured_steps: Count
    room: Positive


class Search(Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of the room ``search``."""

    equal_share: Share
    most_earlier: Count
    most_earlier_tried: Count
    near_least_share: Share
    most_wishes: Count
    most_fitting: Count
    most_ends: Count
    most_neighbours: Count
    neighbour_options: Count
    most_rounds: Count
    stale_rounds: Count
    ruin_steps: Count
    neighbourhood_work: Positive
    relax_share: Share
    first_proof_share: Share
    ask_on_share: Share
    converge_share: Share
    converge_steps: Count
    converged_share: Share
    make_share: Share
    ruin_share: Share
    combine_share: Share
    ruin_options: Count
    later_tried: Count
    ruined: tuple[Count, Count]
    ruin_price_shares: tuple[NotNegative, ...]
    ruin_wishes: Count
    runners_up: Count
    few_workloads: Count
    first_rounds: Count
    first_rounds_share: Share
    master_share: Share
    bound_share: Share
    services_share: Share
    first_share: Share
    bounds_share: Share
    ends_share: Share
    compose_share: Share
    terms_share: Share
    terms_bound_share: Share
    longer_proofs: tuple[Count, Count]
    improve_share: Share
    settle_s_each: Positive
    most_settle_share: Share


class Workers(Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of the room ``workers``."""

    most_processes: Count
    ahead: Count


class Tuning(Struct, frozen=True, forbid_unknown_fields=True):
    """All numbers by room."""

    baselines: Baselines
    columns: Columns
    explain: Explain
    fleets: Fleets
    pipeline: Pipeline
    problem: Problem
    replan: Replan
    runs: Runs
    runtime: Runtime
    search: Search
    workers: Workers


def parse_tuning(text: str) -> Tuning:
    """The numbers of a TOML document; raises ``msgspec.ValidationError``, which names the field."""
    return convert(tomllib.loads(text), Tuning)


TUNING = parse_tuning(CONFIG.read_text(encoding="utf-8"))
