"""Pure linear algebra on tensors: condition numbers, regularizers, guarantees. Imports no other room."""

from immunize.spectrum.condition import condition_number, immunization_ratio, spectrum_of
from immunize.spectrum.erasing_choice import erase
from immunize.spectrum.regularizers import r_ill, r_ill_of_features, r_well, r_well_of_features
from immunize.spectrum.shrinkage import closed_form

__all__ = [
    "closed_form",
    "condition_number",
    "erase",
    "immunization_ratio",
    "r_ill",
    "r_ill_of_features",
    "r_well",
    "r_well_of_features",
    "spectrum_of",
]
