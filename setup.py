"""What pyproject.toml can't say: three folders of the checkout lie inside the installed package."""

from setuptools import find_packages, setup

SHIPPED = {
    "taccl.topologies": "topologies",
    "taccl.sketches": "sketches",
    "taccl.measurements": "measurements",
}
"""Folders of files for users, at the top of the checkout, by their place in a wheel."""

setup(packages=[*find_packages(include=["taccl", "taccl.*"]), *SHIPPED], package_dir=SHIPPED)
