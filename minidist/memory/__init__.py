"""Which arrays a rank holds, by kind, from birth to death; and what tells whether that account is complete."""
