"""Planning: from a typed graph, a signature and a target to a frozen plan that templates print."""

from evt.plan.configurations.choice import configs, default_configs, find_config, natural_signature
from evt.plan.configurations.config import Config
from evt.plan.fields import ABI, Field
from evt.plan.options import Options
from evt.plan.plan import Plan
from evt.plan.planner import plan, plan_defaults
from evt.plan.problem import Problem, Route, Rule
from evt.plan.routes.table import ROUTES, candidates, find_route
from evt.plan.signature import ConvolutionClass, Layout, Signature, alignment_of, convolution_class
from evt.plan.target import TARGETS, Target, find_target

__all__ = [
    "ABI",
    "ROUTES",
    "TARGETS",
    "Config",
    "ConvolutionClass",
    "Field",
    "Layout",
    "Options",
    "Plan",
    "Problem",
    "Route",
    "Rule",
    "Signature",
    "Target",
    "alignment_of",
    "candidates",
    "configs",
    "convolution_class",
    "default_configs",
    "find_config",
    "find_route",
    "find_target",
    "natural_signature",
    "plan",
    "plan_defaults",
]
