"""Which environment variables a job may not bring with it. Pure."""

from typing import Final

BASE_ENV: Final = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "MPLCONFIGDIR"})
"""What the runner sets for each job besides RUNNER_…"""

_OF_THE_RUNNER: Final = "RUNNER_"

# Whoever sets one of these decides which code the loader, the C library, a shell or an interpreter runs before, or in
# place of, what the profile names.
_CODE_PREFIXES: Final = (
    *("LD_", "PYTHON", "PERL5", "RUBY", "LUA_", "MALLOC_", "BASH_FUNC_", "GEM_", "NODE_", "JULIA_", "GIO_"),
    *("OMPI_", "PMIX_", "PRTE_", "OPAL_", "ORTE_", "MPICH_", "HYDRA_", "UCX_"),
)
_CODE_ENV: Final = frozenset(
    {
        *("GLIBC_TUNABLES", "GCONV_PATH", "GETCONF_DIR", "LOCPATH", "NLSPATH", "HOSTALIASES", "LOCALDOMAIN"),
        *("RES_OPTIONS", "RESOLV_HOST_CONF", "NIS_PATH"),
        *("BASH_ENV", "ENV", "IFS", "PS4", "SHELLOPTS", "BASHOPTS", "PROMPT_COMMAND", "ZDOTDIR"),
        *("PERLLIB", "PERL_UNICODE", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH"),
        *("PHPRC", "PHP_INI_SCAN_DIR", "TCLLIBPATH", "AWKPATH", "AWKLIBPATH", "MATPLOTLIBRC", "MPLBACKEND"),
        *("R_PROFILE", "R_PROFILE_USER", "R_ENVIRON", "R_ENVIRON_USER", "R_LIBS", "R_LIBS_USER"),
        *("OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES", "GTK_MODULES", "GTK_PATH", "QT_PLUGIN_PATH"),
        *("HDF5_PLUGIN_PATH", "GDAL_DRIVER_PATH"),
    }
)


def is_always_set(variable: str) -> bool:
    """Tell whether the runner sets a variable for each job, so that no job can."""
    return variable in BASE_ENV or variable.startswith(_OF_THE_RUNNER)


def runs_code(variable: str) -> bool:
    """Tell whether whoever sets a variable can make the loader, a shell or an interpreter run other code."""
    return variable in _CODE_ENV or variable.startswith(_CODE_PREFIXES)
