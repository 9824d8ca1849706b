"""How do several processes train together? `accelerate launch`, ended with the process that started it.

`python -m trainer.launch COUNT trainer.adapt RUN_DIRECTORY`: one process a GPU, or on a machine without one that many
on its cores (gloo), which is for tests. The first does the step, the others lend a hand (`step.main`).
"""

import os
import sys

from trainer import step

ANY_PORT = "0"  # two runs on one machine must not meet


def main() -> None:
    """Start the processes and wait for them."""
    step.prepare_process()
    count, module, *arguments = sys.argv[1:]
    import torch
    from accelerate.commands.launch import main as launch

    if not torch.cuda.is_available():
        os.environ["ACCELERATE_USE_CPU"] = "true"
    fixed = ["--multi_gpu", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    sys.argv = [
        sys.argv[0],
        *fixed,
        "--num_processes",
        count,
        "--main_process_port",
        ANY_PORT,
        "-m",
        module,
        *arguments,
    ]
    launch()


if __name__ == "__main__":
    main()
