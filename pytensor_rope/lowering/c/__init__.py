"""Registrations with the C linker: one pass over the data where the generic graph takes several."""
