"""Sessions with all that they came from in one portable file, under the documented path."""

from rath.session.log.bundle import Bundle as Bundle
from rath.session.log.bundle import BundleStore as BundleStore
from rath.session.log.bundle import Imported as Imported
from rath.session.log.bundle import import_bundle as import_bundle
from rath.session.log.bundle import pack as pack
from rath.session.log.bundle import read_bundle as read_bundle
from rath.session.log.bundle import write_bundle as write_bundle
