"""Where backends come from beside the configuration: `source` holds what one of them said last, `members` all together."""
