package cases

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Basics are the programs of this machine that every subject finds in its PATH: POSIX utilities,
// bash, and what scripts use beside them. All else is there only if the case has it (msb, and
// docker where there is an engine) or if the user adds a folder: what happens to be installed must
// not change a verdict.
var Basics = strings.Fields(`
	awk base64 basename bash cat chgrp chmod chown cmp cp cut date dd df diff dirname du echo env expr false
	find flock getent grep gunzip gzip head hostname id install kill ln ls md5sum mkdir mkfifo mktemp mv
	nice nohup nproc od paste pidof printf ps pwd readlink realpath rm rmdir sed seq setsid sh sha256sum
	sleep sort stat stty sync tail tar tee test timeout touch tr true tty uname uniq wc which xargs`)

// basics makes a folder with links to the Basics that this machine has.
func basics(folder string) error {
	if err := os.Mkdir(folder, 0o755); err != nil {
		return err
	}
	for _, name := range Basics {
		program, err := exec.LookPath(name)
		if err != nil {
			continue // a subject that needs it says so
		}
		if program, err = filepath.Abs(program); err != nil {
			return err
		}
		if err := os.Symlink(program, filepath.Join(folder, name)); err != nil {
			return err
		}
	}
	return nil
}
