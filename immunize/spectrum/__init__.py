"""Pure linear algebra on tensors: condition numbers, regularizers, guarantees. Imports no other room."""

from immunize.spectrum.condition import (
    DEFAULT_RHO,
    ESTIMATORS,
    ConditionNumber,
    Estimator,
    ImmunizationRatio,
    Spectrum,
    compress_rows,
    condition_number,
    default_tolerance,
    immunization_ratio,
    spectrum_of,
    spectrum_of_gram,
)
from immunize.spectrum.guarantees import ill_step_bound, well_step_bound
from immunize.spectrum.regularizers import (
    kappa,
    kappa_of_features,
    r_ill,
    r_ill_of_features,
    r_well,
    r_well_of_features,
)

__all__ = [
    "DEFAULT_RHO",
    "ESTIMATORS",
    "ConditionNumber",
    "Estimator",
    "ImmunizationRatio",
    "Spectrum",
    "compress_rows",
    "condition_number",
    "default_tolerance",
    "ill_step_bound",
    "immunization_ratio",
    "kappa",
    "kappa_of_features",
    "r_ill",
    "r_ill_of_features",
    "r_well",
    "r_well_of_features",
    "spectrum_of",
    "spectrum_of_gram",
    "well_step_bound",
]
