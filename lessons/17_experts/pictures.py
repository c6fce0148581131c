"""The pictures of lesson 17."""

from minidist.colors import BLUE
