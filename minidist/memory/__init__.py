"""Which arrays a rank holds, by kind, from birth to death; and checks that this account is complete."""
