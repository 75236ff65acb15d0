"""Pure linear algebra on tensors: condition numbers, regularizers, guarantees. Imports no other room."""

from immunize.spectrum.budget import BudgetChoice, BudgetTrial, choose_budget
from immunize.spectrum.checks import ZeroMatrixError
from immunize.spectrum.condition import (
    DEFAULT_RHO,
    ESTIMATORS,
    ConditionNumber,
    Estimator,
    ImmunizationRatio,
    Spectrum,
    condition_number,
    default_tolerance,
    immunization_ratio,
    spectrum_of,
    spectrum_of_gram,
)
from immunize.spectrum.definition import ACCURACY_SLACK, EASE_SLACK, HARDER_BY
from immunize.spectrum.erasing import Erasure, erasing_map, label_directions
from immunize.spectrum.erasing_choice import SHRINKAGES, ChosenErasure, EraseTrial, erase
from immunize.spectrum.guarantees import ill_step_bound, well_step_bound
from immunize.spectrum.optimum import HarmfulForecast, Immunizer, frontier
from immunize.spectrum.pencil import GeneralizedSpectrum, generalized_spectrum, rir_bound
from immunize.spectrum.ranges import compress_rows, joint_basis, lift_map, rank_of_map, restrict_map
from immunize.spectrum.regularizers import (
    kappa,
    kappa_of_features,
    r_ill,
    r_ill_of_features,
    r_well,
    r_well_of_features,
)
from immunize.spectrum.separability import (
    KERNELS,
    RHOS,
    Kernel,
    cross_fitted_accuracy,
    cross_fitted_correlation,
    folds_of,
    in_sample_share,
    probe_correlation,
    target_columns,
)
from immunize.spectrum.shrinkage import (
    SHRINKAGE_GRID,
    ClosedForm,
    ShrinkageChoice,
    choose_shrinkage,
    closed_form,
    ledoit_wolf,
)

__all__ = [
    "ACCURACY_SLACK",
    "DEFAULT_RHO",
    "EASE_SLACK",
    "ESTIMATORS",
    "HARDER_BY",
    "KERNELS",
    "RHOS",
    "SHRINKAGES",
    "SHRINKAGE_GRID",
    "BudgetChoice",
    "BudgetTrial",
    "ChosenErasure",
    "ClosedForm",
    "ConditionNumber",
    "EraseTrial",
    "Erasure",
    "Estimator",
    "GeneralizedSpectrum",
    "HarmfulForecast",
    "ImmunizationRatio",
    "Immunizer",
    "Kernel",
    "ShrinkageChoice",
    "Spectrum",
    "ZeroMatrixError",
    "choose_budget",
    "choose_shrinkage",
    "closed_form",
    "compress_rows",
    "condition_number",
    "cross_fitted_accuracy",
    "cross_fitted_correlation",
    "default_tolerance",
    "erase",
    "erasing_map",
    "folds_of",
    "frontier",
    "generalized_spectrum",
    "ill_step_bound",
    "immunization_ratio",
    "in_sample_share",
    "joint_basis",
    "kappa",
    "kappa_of_features",
    "label_directions",
    "ledoit_wolf",
    "lift_map",
    "probe_correlation",
    "r_ill",
    "r_ill_of_features",
    "r_well",
    "r_well_of_features",
    "rank_of_map",
    "restrict_map",
    "rir_bound",
    "spectrum_of",
    "spectrum_of_gram",
    "target_columns",
    "well_step_bound",
]
