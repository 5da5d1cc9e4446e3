"""Planning: from a typed graph, a signature and a target to a frozen plan that templates print."""

from evt.plan.configurations.config import Config
from evt.plan.fields import ABI, Field
from evt.plan.options import Options
from evt.plan.plan import Plan
from evt.plan.problem import Problem
from evt.plan.routes.order import ROUTES
from evt.plan.routes.route import Kernel, Route
from evt.plan.signature import (
    ConvolutionClass,
    LayoutClass,
    Signature,
    alignment_of,
    convolution_class,
    natural_signature,
)
from evt.plan.sizes import Sizes
from evt.plan.survey import Candidate, Survey, plan, survey
from evt.plan.target import TARGETS, Target, find_target

__all__ = [
    "ABI",
    "ROUTES",
    "TARGETS",
    "Candidate",
    "Config",
    "ConvolutionClass",
    "Field",
    "Kernel",
    "LayoutClass",
    "Options",
    "Plan",
    "Problem",
    "Route",
    "Signature",
    "Sizes",
    "Survey",
    "Target",
    "alignment_of",
    "convolution_class",
    "find_target",
    "natural_signature",
    "plan",
    "survey",
]
