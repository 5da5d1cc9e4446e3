"""``evt tune``: timing of a problem's routes on this machine's GPU, so that later calls take the fastest."""

from __future__ import annotations

import click

from evt.cli.invocation import Invocation, takes_program
from evt.cli.output import json_option, print_json, print_text, progress
from evt.cli.sections import SizedCommand

#: The default extents of a matrix product.
EXTENTS = {"m": 4096, "n": 4096, "k": 4096}


@click.command(
    "tune", cls=SizedCommand, epilog="Example: evt tune 'D = relu(acc + bias)' --m 4096 --n 4096 --k 1024 --dtype bf16"
)
@takes_program(arch=False, route=False, defaults=EXTENTS)
@click.option("--rounds", type=click.IntRange(1, 100_000), default=31, show_default=True, help="Number of samples.")
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed of the random data."
)
@json_option
@click.pass_context
def command(ctx: click.Context, invocation: Invocation, rounds: int, seed: int, json: bool) -> None:
    """Time every route that can run a program, and keep the times.

    The times are taken on random tensors on this machine's GPU. Later calls of the program with equal types,
    layouts and sizes take the fastest kernel on such a GPU. `evt explain` shows the times. The times are medians of
    interleaved rounds; the L2 cache is flushed before each launch. A kernel whose outputs differ from the first
    kernel's is left out. The tensors of a convolution are channels_last. Without --a-shape and --b-shape it has batch
    size 2, 64 channels and a 3x3 kernel. Each group of grouped_gemm has its own size, as in --m 128,64,0. The times
    also apply to calls with similar numbers of groups and rows. `evt cache clear` removes all times.

    The exit code is 1 if no kernel could be timed.
    """
    from evt.request import problem_sizes, typed_graph

    request = invocation.program.request
    given = invocation.products_or(EXTENTS)
    for shapes in given:
        problem_sizes(request, shapes)
    dag = typed_graph(request, invocation.a, invocation.b)  # reports its diagnostics before torch is imported
    try:
        import torch
    except ModuleNotFoundError as error:
        raise click.ClickException("evt tune needs PyTorch: pip install torch") from error
    from evt.bench import require_gpu
    from evt.cli.tensors import call_sizes, held_buffers, random_call, shapes_of
    from evt.cli.trial import check_memory
    from evt.tuning.grouped import tune_groups
    from evt.tuning.tune import tune

    device = require_gpu()
    products = given or (shapes_of(request, None),)
    check_memory(request, dag, products, device)
    generator = torch.Generator(device).manual_seed(seed)
    calls = [random_call(request.member if request.grouped else request, dag, shapes, generator) for shapes in products]
    try:
        if request.grouped:
            a, b = ([operands[place] for operands, _ in calls] for place in range(2))
            groups = {name: [inputs[name] for _, inputs in calls] for name in calls[0][1]}
            found = tune_groups(request, a, b, groups, rounds=rounds, progress=progress)
        else:
            (((x, y), inputs),) = calls
            held = held_buffers(dag, call_sizes(request, products[0]), device)
            found = tune(request, x, y, inputs | held, rounds=rounds, progress=progress)
    except torch.OutOfMemoryError as error:
        raise click.ClickException("not enough memory on the GPU for these sizes") from error
    if json:
        print_json(found.to_json())
    else:
        print_text(str(found))
    ctx.exit(0 if found.chosen else 1)
