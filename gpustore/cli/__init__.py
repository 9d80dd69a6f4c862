"""The command line, ``gpustore``; one file a command."""
