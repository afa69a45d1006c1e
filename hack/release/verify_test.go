package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
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
	refused(t, "no name of a key", "usage:", dir, "--key")
	refused(t, "a missing folder", "no such folder", "--key", public, "/nowhere")
	refused(t, "two folders", "usage:", "--key", public, "/nowhere", dir)
	refused(t, "an unknown flag", "usage:", "--key", public, "--folder")
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

// A line of SHA256SUMS that sha256sum does not check, or checks elsewhere, is refused, although its
// signature is good: the file that it names could be any.
func TestVerifyRefusesOtherLinesOfSums(t *testing.T) {
	o := newTree(t)
	dir, err := release(t.Context(), o, someFiles)
	errtest.Must(t, err)
	sums := filepath.Join(dir, sumsFile)
	good := string(filetest.Read(t, sums))
	empty := fmt.Sprintf("%x", sha256.Sum256(nil))
	filetest.Write(t, filepath.Join(filepath.Dir(dir), "outside"), nil, 0o600)
	filetest.Write(t, filepath.Join(dir, "any"), []byte("anything"), 0o600)

	for what, line := range map[string]string{
		"another folder":    empty + "  ../outside",
		"an absolute path":  empty + "  /dev/null",
		"standard input":    empty + "  -",
		"a comment":         "#" + empty + "  any",
		"a short sum":       empty[1:] + "  any",
		"no sum":            "x" + empty[1:] + "  any",
		"binary":            empty + " *any",
		"an escaped name":   `\` + empty + "  an\\ny",
		"the format of BSD": "SHA256 (any) = " + empty,
		"a line of Windows": empty + "  any\r",
		"an empty line":     "",
	} {
		filetest.Write(t, sums, []byte(good+line+"\n"), 0o600)
		errtest.Must(t, os.RemoveAll(sums+signature))
		run(t, "", "ssh-keygen", "-q", "-Y", "sign", "-f", o.key, "-n", namespace, sums)
		refused(t, what, "SHA256SUMS: a line", "--key", o.key+".pub", dir)
	}
}

// The file of the key has one key, as ssh-keygen writes it or as an editor of Windows saves it.
func TestVerifyTakesOneKey(t *testing.T) {
	o := newTree(t)
	dir, err := release(t.Context(), o, someFiles)
	errtest.Must(t, err)
	other := newKey(t)
	run(t, "", "ssh-keygen", "-q", "-s", other, "-I", "kubeveil", "-n", "kubeveil", o.key+".pub")
	text := func(name string) string { return string(filetest.Read(t, name)) }
	public, file := text(o.key+".pub"), filepath.Join(t.TempDir(), "key.pub")

	for what, tc := range map[string]struct{ text, want string }{
		"two keys":                  {text(other+".pub") + public, "several keys"},
		"the same key twice":        {public + public, "several keys"},
		"a key with options":        {"cert-authority " + public, "no public key"},
		"a certificate":             {text(o.key + "-cert.pub"), "another key signed"},
		"a forged line":             {"ssh-ed25519 A\\nkubeveil " + public, "another key signed"},
		"an empty file":             {"", "no public key"},
		"comments":                  {"# of Kubeveil\n\n" + public, ""},
		"lines of Windows":          {strings.ReplaceAll(public, "\n", "\r\n"), ""},
		"no comment, no line break": {strings.Join(strings.Fields(public)[:2], " "), ""},
	} {
		filetest.Write(t, file, []byte(tc.text), 0o600)
		if tc.want != "" {
			refused(t, what, tc.want, "--key", file, dir)
		} else if out, good := verify("--key", file, dir); !good {
			t.Errorf("%s: %s", what, out)
		}
	}
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
	for _, name := range []string{"new", ".hidden", "..hidden", ".......", "a b", "-eVERSION", "--",
		"-", "*", "folder/", "pipe|", "nowhere@", "\x1b[2J", "\xff", lines} {
		path := filepath.Join(dir, strings.TrimRight(name, "/|@"))
		switch name[len(name)-1] {
		case '/':
			errtest.Must(t, os.Mkdir(path, 0o755))
		case '|':
			errtest.Must(t, syscall.Mkfifo(path, 0o600))
		case '@':
			errtest.Must(t, os.Symlink("/nowhere", path))
		default:
			filetest.Write(t, path, nil, 0o600)
		}
		shown := regexp.MustCompile(`[^A-Za-z0-9._ -]`).ReplaceAllString(
			strings.TrimRight(name, "/|@"), "?")
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
