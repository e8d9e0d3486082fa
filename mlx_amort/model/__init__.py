"""The four trunks as functions on flat dictionaries of weights."""
