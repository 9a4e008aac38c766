"""Output files and folders that appear complete or not at all.

Files and folders are written under a temporary name beside their target, flushed to disk, and renamed. On an error, the
temporary output is removed and the target is unchanged. Leftovers of a killed process are removed when the same target
is written again. If the target is a symbolic link, the file that it points to is replaced. Devices and pipes are
written to directly.
"""

from bothways.storage.output import OUT_OF_ROOM as OUT_OF_ROOM
from bothways.storage.output import check_file_writable as check_file_writable
from bothways.storage.output import check_folder_free as check_folder_free
from bothways.storage.output import check_folder_place as check_folder_place
from bothways.storage.output import disk_errors as disk_errors
from bothways.storage.output import give_usual_mode as give_usual_mode
from bothways.storage.output import is_opened_by_caller as is_opened_by_caller
from bothways.storage.output import is_stream as is_stream
from bothways.storage.output import move_folder as move_folder
from bothways.storage.output import new_file as new_file
from bothways.storage.output import new_folder as new_folder
from bothways.storage.temporary import held as held
from bothways.storage.temporary import remove_leftovers as remove_leftovers
from bothways.storage.temporary import temporary_folder as temporary_folder
