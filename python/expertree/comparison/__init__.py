"""The comparison of ways to draft and to choose: prompts, settings, timed runs, recorded traces and their replay."""
