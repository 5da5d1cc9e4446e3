"""The measured kernels, which the default rule may take: ``uncovered(plan, product) -> reason``.

The cost model (:mod:`evt.fx.cost_model`) is fitted to measurements. It is valid for the classes in :data:`COVERED`.
The default rule fuses a region if measurements cover the class of its kernel. All other products stay with PyTorch's
libraries (E1022). A route, target, type or kind of convolution gets a row here after it is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evt.fx.example import hint
from evt.fx.gradient import graph_name
from evt.fx.product import Product
from evt.plan import Plan
from evt.plan.halo_few import pixels_of_chunk
from evt.plan.plan import OwnProduct
from evt.plan.routes import convolution_3x, depthwise_3x, gemm_3x, gemm_own_3x, halo_3x, wgrad_3x
from evt.plan.routes.route import Route

#: The most channels of a first layer, and the most taps of the other measured filters in each dimension.
FEW_CHANNELS, _MOST_TAPS = 8, 5
#: The most taps of depthwise 1-d filters.
_MOST_TAPS_OF_LINES = 31
#: The pixels of the smallest measured slices of volumes.
_SMALL_SLICE = 100


def _is_any(product: Product) -> bool:
    return True


def _filter_shape(product: Product) -> tuple[int, ...]:
    """Return the shape of a convolution's filters, which a gradient of filters computes."""
    node = product.node if product.operation.endswith("wgrad") else product.b
    return tuple(map(hint, node.meta["val"].shape))


def is_aligned(product: Product) -> bool:
    """Return whether the channels and the filters of a convolution fill multiples of 16 bytes."""
    filters, channels, *_ = _filter_shape(product)
    return filters % 8 == 0 and channels % 8 == 0


def _is_usual(product: Product) -> bool:
    """Return whether a convolution is aligned, and its filter is not large."""
    return is_aligned(product) and max(_filter_shape(product)[2:]) <= _MOST_TAPS


def _is_short_line(product: Product) -> bool:
    """Return whether a filter of a depthwise 1-d convolution is not longer than the measured ones."""
    return max(_filter_shape(product)[2:]) <= _MOST_TAPS_OF_LINES


def _has_measured_pixels(product: Product) -> bool:
    """Return whether pixels are unaligned, but no first layer's, and the filter has some taps or a stride."""
    _, channels, *taps = map(hint, product.b.meta["val"].shape)
    matrices = max(*taps, *product.geometry["stride"]) == 1
    return not (is_aligned(product) or matrices) and channels > FEW_CHANNELS and max(taps) <= _MOST_TAPS


def _has_measured_slices(product: Product) -> bool:
    """Return whether a 3-d convolution is aligned, its filters are no columns in time, and slices are not small."""
    *_, taps, rows, columns = map(hint, product.b.meta["val"].shape)
    *_, height, width = map(hint, product.node.meta["val"].shape)
    return _is_usual(product) and (max(rows, columns) > 1 or taps == 1) and height * width >= _SMALL_SLICE


def _has_measured_groups(product: Product) -> bool:
    """Return whether groups have several channels, and the filter is not large."""
    _, channels, *taps = map(hint, product.b.meta["val"].shape)
    return channels > 1 and max(taps) <= _MOST_TAPS


def _has_measured_lines(product: Product) -> bool:
    """Return whether groups of a 1-d convolution are measured, and no gradient reads the operands."""
    return _has_measured_groups(product) and not graph_name()


def _is_first(product: Product) -> bool:
    """Return whether a convolution is a first layer: few channels, and filters that fill multiples of 16 bytes.

    Steps of the stride that have more than 16 bytes of widened pixels are not measured under torch.compile.
    """
    filters, channels, *_ = map(hint, product.b.meta["val"].shape)
    step = product.geometry["stride"][-1]
    return filters % 8 == 0 and channels <= FEW_CHANNELS and pixels_of_chunk(channels, 2, step) == step


def _has_unaligned_rows(plan: Plan) -> bool:
    """Return whether an own product copies operands or stores D element by element: no model measured these."""
    return isinstance(plan.mainloop, OwnProduct) and (bool(plan.row_copies) or plan.destination is None)


@dataclass(frozen=True)
class Class:
    """A class of kernels: operations, routes and types of operands on a target, and the source of its measurements.

    ``takes`` decides which products of the operations are in the class.
    """

    title: str
    operations: tuple[str, ...]
    routes: tuple[Route, ...]
    types: tuple[str, ...]
    source: str
    takes: Callable[[Product], bool] = _is_any
    target: str = "sm90"

    def covers(self, plan: Plan, product: Product) -> bool:
        """Return whether a product's kernel is in the class."""
        types = {each.dtype.name for each in plan.parameters if each.kind == "operand"}
        return (
            self.target == plan.target.name
            and product.operation in self.operations
            and plan.route in {route.name for route in self.routes}
            and types <= set(self.types)
            and not _has_unaligned_rows(plan)
            and self.takes(product)
        )


_PRODUCTS = (gemm_own_3x.PRODUCT, gemm_own_3x.BATCHES, gemm_3x.STOCK, gemm_3x.EVT)
_CONVOLUTIONS = (halo_3x.HALO, convolution_3x.EVT, *_PRODUCTS)
_HALF = ("f16", "bf16")
#: The measured classes, 2026-11. GEMM routes also compute convolutions with 1x1 filters.
COVERED = (
    Class(
        "matrix products",
        operations=("gemm", "linear"),
        routes=_PRODUCTS,
        types=_HALF,
        source="evt bench --suite gemm and 35 sizes on an H200; 48 cases of 1 to 8192 rows on an H100",
    ),
    Class(
        "2-d convolutions without groups",
        operations=("conv2d",),
        routes=_CONVOLUTIONS,
        types=_HALF,
        source="evt bench --suite resnet, unet, detector and 250 other layers on an H200; 58 layers on an H100",
        takes=_is_usual,
    ),
    Class(
        "2-d convolutions of unaligned pixels without groups, with several taps or a stride",
        operations=("conv2d",),
        routes=(halo_3x.TAPS, halo_3x.HALO, halo_3x.WORDS, halo_3x.COPIED),
        types=_HALF,
        source="68 drawn layers of 9 to 256 channels and 1 to 128 filters on an H100; 19 of 1 to 6 filters on an H200",
        takes=_has_measured_pixels,
    ),
    Class(
        "first layers",
        operations=("conv2d",),
        routes=(halo_3x.PADDED, convolution_3x.PADDED),
        types=_HALF,
        source="5 layers of 1 to 64 images, and layers of networks, on an H200",
        takes=_is_first,
    ),
    Class(
        "first layers of volumes",
        operations=("conv3d",),
        routes=(halo_3x.PADDED,),
        types=_HALF,
        source="9 layers of r3d_18, r2plus1d_18, video VAEs and 3-d U-Nets, and r3d_18, on an H200",
        takes=_is_first,
    ),
    Class(
        "1-d convolutions without groups, and their gradients",
        operations=("conv1d", "conv1d_dgrad", "conv1d_wgrad"),
        routes=(*_CONVOLUTIONS, wgrad_3x.WGRAD),
        types=_HALF,
        source="17 layers of wav2vec 2.0, Whisper and vocoders, and steps of three of these models, on an H200",
        takes=_is_usual,
    ),
    Class(
        "1-d convolutions with groups, without gradients",
        operations=("conv1d",),
        routes=(halo_3x.GROUPED,),
        types=_HALF,
        source="blocks of a ResNeXt for signals, and 2 layers, on an H200",
        takes=_has_measured_lines,
    ),
    Class(
        "depthwise 1-d convolutions",
        operations=("conv1d",),
        routes=(depthwise_3x.DEPTHWISE,),
        types=_HALF,
        source="blocks of a conformer and of Mamba, and 5 layers of 3 to 31 taps, on an H200",
        takes=_is_short_line,
    ),
    Class(
        "3-d convolutions without groups whose filters are no columns in time",
        operations=("conv3d",),
        routes=(halo_3x.HALO, *_PRODUCTS),
        types=_HALF,
        source="30 layers of r3d_18, r2plus1d_18, video VAEs and a 3-d U-Net on an H100",
        takes=_has_measured_slices,
    ),
    Class(
        "2-d convolutions with groups",
        operations=("conv2d",),
        routes=(halo_3x.GROUPED,),
        types=_HALF,
        source="layers of resnext50, resnext101, regnety_032, regnety_160 and ShuffleNet, 1 to 256 images, on an H100",
        takes=_has_measured_groups,
    ),
    Class(
        "gradients of the inputs of such 2-d convolutions without groups",
        operations=("conv2d_dgrad",),
        routes=_CONVOLUTIONS,
        types=_HALF,
        source="3x3 layers and training steps of ResNet-50 on an H200; of resnet18 and mobilenet_v2 on an H100",
        takes=_is_usual,
    ),
    Class(
        "depthwise convolutions",
        operations=("conv2d",),
        routes=(depthwise_3x.DEPTHWISE,),
        types=(*_HALF, "f32"),
        source="evt bench --suite depthwise, and 43 other layers, on an H200; f32: 5 layers",
    ),
    Class(
        "gradients of the inputs of depthwise convolutions",
        operations=("conv2d_dgrad",),
        routes=(depthwise_3x.DEPTHWISE,),
        types=_HALF,
        source="5 layers on an H200",
    ),
)


#: The fewest elements of a group norm whose moments the convolution before it computes. Measured in 13 residual blocks
#: of VAEs and U-Nets on an H100, 2026-11.
GROUP_NORM_ELEMENTS = 500_000
#: The fewest elements of a batch norm in training whose moments the convolution before it computes, without groups.
#: Measured in training steps of resnet18 and resnet50 on an H100, 2026-11.
BATCH_NORM_ELEMENTS = 3_000_000
#: The most rows for which measurements say that norms win inside the products that read them: 1 and 16 rows of two
#: transformers on an H100, with frozen parameters. Norms of 256 rows lost.
NORM_ROWS = 16


def uncovered(plan: Plan, product: Product) -> str:
    """Return why the default rule skips a product, or "" if measurements cover its kernel."""
    if any(known.covers(plan, product) for known in COVERED):
        return ""
    types = sorted({each.dtype.name for each in plan.parameters if each.kind == "operand"})
    groups = product.geometry.get("groups", 1)
    what = f"{product.operation} of {groups} groups" if groups != 1 else product.operation
    return f"no measurement covers {what} ({', '.join((*types, f'route {plan.route}', plan.target.name))})"
