"""``evt tune``: the routes of a problem timed on this machine's GPU, for later calls to take the fastest."""

from __future__ import annotations

import click

from evt.cli.output import json_option, print_json, print_text, progress
from evt.cli.request import Request, takes_program

#: Extents of a product of matrices that are not given.
EXTENTS = {"m": 4096, "n": 4096, "k": 4096}


@click.command("tune", epilog="Example: evt tune 'D = relu(acc + bias)' --m 4096 --n 4096 --k 1024 --dtype bf16")
@takes_program(arch=False, route=False, defaults=EXTENTS)
@click.option("--rounds", type=click.IntRange(1, 100_000), default=31, show_default=True, help="Samples.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Of the data.")
@json_option
@click.pass_context
def command(ctx: click.Context, request: Request, rounds: int, seed: int, json: bool) -> None:
    """Time every route that applies to a program, on random tensors on this machine's GPU, and keep the times.

    Calls of the same program with the same types, layouts and sizes then take the fastest kernel on such a GPU, and
    `evt explain` shows the times. They are medians of interleaved rounds with the L2 cache flushed before each launch;
    a kernel whose outputs are not those of the first is left out. The tensors of a convolution are channels_last;
    without --a-shape and --b-shape it has 2 images, 64 channels and 3x3 filters. Groups of grouped_gemm have a size
    each, as in --m 128,64,0; what is kept is for about as many groups with about as many rows. `evt cache clear`
    removes all times.

    The exit code is 1 when no kernel could be timed.
    """
    from evt.spec import problem_sizes, typed_graph

    spec = request.program.spec
    given = request.products_or(EXTENTS)
    for shapes in given:
        problem_sizes(spec, shapes)
    dag = typed_graph(spec, request.a, request.b)  # its diagnostics, before torch is imported
    try:
        import torch
    except ModuleNotFoundError as error:
        raise click.ClickException("evt tune needs PyTorch: pip install 'evt-compiler[torch]'") from error
    from evt.bench import require_gpu
    from evt.cli.tensors import call_sizes, held_buffers, random_call, shapes_of
    from evt.cli.trial import check_memory
    from evt.tuning.grouped import tune_groups
    from evt.tuning.tune import tune

    device = require_gpu()
    products = given or (shapes_of(spec, None),)
    check_memory(spec, dag, products, device)
    generator = torch.Generator(device).manual_seed(seed)
    calls = [random_call(spec.member if spec.grouped else spec, dag, shapes, generator) for shapes in products]
    try:
        if spec.grouped:
            a, b = ([operands[place] for operands, _ in calls] for place in range(2))
            groups = {name: [inputs[name] for _, inputs in calls] for name in calls[0][1]}
            found = tune_groups(spec, a, b, groups, rounds=rounds, progress=progress)
        else:
            (((x, y), inputs),) = calls
            held = held_buffers(dag, call_sizes(spec, products[0]), device)
            found = tune(spec, x, y, inputs | held, rounds=rounds, progress=progress)
    except torch.OutOfMemoryError as error:
        raise click.ClickException("not enough memory on the GPU for these sizes") from error
    if json:
        print_json(found.to_json())
    else:
        print_text(str(found))
    ctx.exit(0 if found.chosen else 1)
