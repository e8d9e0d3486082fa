"""The configuration of a run; there is no shorter address than its modules, such as `config.values`."""
