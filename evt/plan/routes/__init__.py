"""Routes: one record for each way to compile a program, in order of preference.

To add one, write its planner in evt/plan/kernels, which names its template in codegen/templates and its headers in
codegen/include/evt, and its record here: rules, configurations, and the planner for each family of targets. Then give
it its place in evt.plan.routes.order. Everything else, from ``evt emit`` to ``evt tune``, reads the record.
"""
