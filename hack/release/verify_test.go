package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// verify runs this tree's verify.sh, and returns its output and whether it succeeds.
func verify(args ...string) (out string, good bool) {
	b, err := exec.Command("sh", append([]string{"verify.sh"}, args...)...).CombinedOutput()
	return string(b), err == nil
}

// refused fails the test unless verify.sh fails and its output has want.
func refused(t *testing.T, what, want string, args ...string) {
	t.Helper()
	if out, good := verify(args...); good || !strings.Contains(out, want) {
		t.Errorf("%s: success %t, want a failure with %q:\n%s", what, good, want, out)
	}
}

func TestVerifyNamesAChangedFile(t *testing.T) {
	o := newTree(t)
	dir, err := release(t.Context(), o, someFiles)
	errtest.Must(t, err)
	public := o.key + ".pub"
	checkFolder(t, dir, public)

	if out, err := exec.Command(filepath.Join(dir, "verify.sh"), "--key",
		public).CombinedOutput(); err != nil {
		t.Errorf("the script of the folder: %v: %s", err, out)
	}
	refused(t, "another key", "another key signed", "--key", newKey(t)+".pub", dir)
	refused(t, "the private key", "no public key", "--key", o.key, dir)
	refused(t, "no key", "usage:", dir)
	refused(t, "a missing key", "no such file", "--key", "/nowhere", dir)
	refused(t, "no value", "usage:", "--key", public, dir, "--version")
	refused(t, "an empty version", "usage:", "--key", public, "--version", "", dir)

	broken := filepath.Join(t.TempDir(), filepath.Base(dir)) + "\n"
	errtest.Must(t, os.CopyFS(broken, os.DirFS(dir)))
	refused(t, "a line break after the name", "rename it", "--key", public, broken)
	errtest.Must(t, os.Symlink(dir, strings.TrimSuffix(broken, "\n")))
	refused(t, "a name of another folder", "rename it", "--key", public, broken)

	inside := filepath.Join(dir, "key.pub")
	errtest.Must(t, copyFile(public, inside))
	refused(t, "a key in the folder", "from its owner", "--key", inside, dir)
	errtest.Must(t, os.Remove(inside))

	path := filepath.Join(dir, sumsFile)
	errtest.Must(t, os.Remove(path+signature))
	refused(t, "no signature", "SHA256SUMS.sig", "--key", public, dir)
	run(t, "", "ssh-keygen", "-q", "-Y", "sign", "-f", strings.TrimSuffix(public, ".pub"),
		"-n", "file", path)
	refused(t, "a signature for something else", "SHA256SUMS.sig", "--key", public, dir)
}

// An old release, whose signature is good, does not pass for another version. A folder that was
// signed without a version is refused.
func TestVerifyRefusesAnotherVersion(t *testing.T) {
	o := newTree(t)
	dir, err := release(t.Context(), o, someFiles)
	errtest.Must(t, err)
	public := o.key + ".pub"
	newer := filepath.Join(filepath.Dir(dir), "v0.2.0")
	errtest.Must(t, os.Rename(dir, newer))

	for _, args := range [][]string{{"--version", "v0.1.0"}, {}} {
		out, good := verify(append(args, "--key", public, newer)...)
		if !good || !strings.Contains(out, newer+": v0.1.0, the signature is good") {
			t.Errorf("%v: success %t: %s", args, good, out)
		}
	}
	for _, version := range []string{"v0.2.0", "v0.1", "v0.1.0-rc.1", "0.1.0"} {
		refused(t, version, newer+" is v0.1.0, not "+version, "--key", public, "--version", version,
			newer)
	}

	for _, name := range []string{versionFile, sumsFile, sumsFile + signature} {
		errtest.Must(t, os.Remove(filepath.Join(newer, name)))
	}
	errtest.Must(t, sign(t.Context(), o, newer))
	refused(t, "signed without a version", "names no version", "--key", public, newer)
}

// checkFolder checks that verify.sh accepts the folder of a release, and no folder with one byte,
// one file or one name changed. It leaves the folder as it was.
func checkFolder(t *testing.T, dir, public string) {
	t.Helper()
	if out, good := verify("--key", public, dir); !good {
		t.Fatalf("an unchanged folder: %s", out)
	}

	entries, err := os.ReadDir(dir)
	errtest.Must(t, err)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		info, err := e.Info()
		errtest.Must(t, err)
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		errtest.Must(t, err)
		at := info.Size() / 2
		flip(t, f, at)
		refused(t, "a byte of "+e.Name(), e.Name(), "--key", public, dir)
		flip(t, f, at)
		errtest.Must(t, f.Close())

		away := filepath.Join(dir, ".away")
		errtest.Must(t, os.Rename(path, away))
		refused(t, "without "+e.Name(), e.Name(), "--key", public, dir)
		errtest.Must(t, os.Symlink(away, path))
		refused(t, "a link for "+e.Name(), e.Name(), "--key", public, dir)
		errtest.Must(t, os.Remove(path), os.Rename(away, path))
	}

	// A name that has the name of a file of the release in a line of its own is not such a file.
	lines := "x\n" + entries[len(entries)-1].Name()
	for _, name := range []string{"new", ".hidden", "..hidden", "a b", "-c", "folder/", lines} {
		path := filepath.Join(dir, name)
		if strings.HasSuffix(name, "/") {
			errtest.Must(t, os.Mkdir(path, 0o755))
		} else {
			filetest.Write(t, path, nil, 0o600)
		}
		shown := strings.ReplaceAll(strings.TrimSuffix(name, "/"), "\n", "?")
		refused(t, "with the file "+name, shown+": not a file", "--key", public, dir)
		errtest.Must(t, os.Remove(path))
	}
	if out, good := verify("--key", public, dir); !good {
		t.Errorf("the folder as it was: %s", out)
	}
}

// flip changes one bit of the first byte at or after an offset that does not end a line: of the
// file of a signature ssh-keygen ignores how lines end.
func flip(t *testing.T, f *os.File, at int64) {
	t.Helper()
	b := []byte("\n")
	for ; b[0] == '\n'; at++ {
		_, err := f.ReadAt(b, at)
		errtest.Must(t, err)
	}
	b[0] ^= 1
	_, err := f.WriteAt(b, at-1)
	errtest.Must(t, err)
}
