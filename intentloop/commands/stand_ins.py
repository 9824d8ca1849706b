"""Which stand-ins run where no real teachers are configured? Two simulated ones, called so wherever a person can see.

They are processes of the demo's world, named by module and never imported.
"""

from typing import Any

import msgspec

from intentloop.adapters.supervisor import ProcessSpec
from intentloop.commands import stack

TEACHERS = ("qwen", "kimi")

_NOISE = {"qwen": (1, 0.05), "kimi": (2, 0.07)}  # seed and share of wrong labels
_PRICES_YUAN = {"qwen": (2.5, 10.0), "kimi": (4.0, 16.0)}  # a million tokens in and out, of the order of list prices


def process_name(teacher: str) -> str:
    """What is this teacher's process called?"""
    return f"teacher-{teacher}"


NAMES = tuple(process_name(teacher) for teacher in TEACHERS)


def teacher_specs(plan: stack.Plan) -> list[ProcessSpec]:
    """The two simulated teachers as processes; the second answers in a code fence, as some do."""
    found = []
    for teacher in TEACHERS:
        name = process_name(teacher)
        seed, noise = _NOISE[teacher]
        spec = stack.process(plan, "demo.teachers", "--name", teacher, "--port", str(plan.health_ports[name]))
        more = ("--seed", str(seed), "--noise", str(noise), *(("--fenced",) if teacher == "kimi" else ()))
        found.append(msgspec.structs.replace(spec, name=name, command=(*spec.command, *more)))
    return found


def teacher_settings(plan: stack.Plan) -> stack.Sections:
    """Where do the workers find them?"""
    return {"teacher_a": _section(plan, "qwen"), "teacher_b": _section(plan, "kimi"), "judge": _section(plan, "qwen")}


def _section(plan: stack.Plan, teacher: str) -> dict[str, Any]:
    prompt_yuan, output_yuan = _PRICES_YUAN[teacher]
    return {
        "name": f"{teacher} (simulated)",
        "base_url": f"http://127.0.0.1:{plan.health_ports[process_name(teacher)]}/v1",
        "model": f"simulated-{teacher}",
        "api_key": "simulated",
        "prompt_yuan_per_million": prompt_yuan,
        "output_yuan_per_million": output_yuan,
        "backoff_s": 0.1,
        "throttle_pause_s": 0.5,
        "breaker_pause_s": 2.0,
    }
