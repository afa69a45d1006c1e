package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/crypto/ssh"
)

// aVersion matches versions of Semantic Versioning 2.0.0 without build metadata, which tags of
// images cannot have.
var aVersion = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)` +
	`(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?$`)

// check returns an error if the release cannot be made. It writes nothing.
func (o order) check(ctx context.Context) error {
	if !aVersion.MatchString(o.version) {
		return fmt.Errorf("--version %q: write a version such as v0.1.0 or v0.1.0-rc.1", o.version)
	}
	if repository, err := name.NewRepository(o.name, name.StrictValidation); err != nil ||
		repository.Name() != o.name {
		return fmt.Errorf("--name %q: write the name of an image with its registry and without "+
			"a tag, such as registry.example/kubeveil", o.name)
	}
	if err := checkKey(ctx, o.tree, o.key); err != nil {
		return err
	}

	dir := filepath.Join(o.out, o.version)
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("%s exists: remove it first", dir), err)
	}

	if err := checkTree(ctx, o.tree, o.version); err != nil {
		return err
	}
	// It fails if go.mod requires a newer Go, because environment turns other toolchains off.
	_, err := command(ctx, o.tree, "go", "list", "-m")
	return err
}

// checkKey returns an error unless key is a key file of OpenSSH outside the tree.
func checkKey(ctx context.Context, tree, key string) error {
	if key == "" {
		return errors.New("--key is missing: write the name of a key file, such as one of " +
			"`ssh-keygen -t ed25519`")
	}
	path, err := filepath.EvalSymlinks(key)
	if err != nil {
		return fmt.Errorf("--key: %w", err)
	}
	top, err := filepath.EvalSymlinks(tree)
	if err != nil {
		return err
	}
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	if rest, err := filepath.Rel(top, path); err == nil && filepath.IsLocal(rest) {
		return fmt.Errorf("--key %s is in the tree: keep keys outside", key)
	}

	// It prints the fingerprint without a passphrase.
	if _, err := command(ctx, tree, "ssh-keygen", "-l", "-f", path); err != nil {
		return fmt.Errorf("--key %s is not a key file of OpenSSH: %w", key, err)
	}
	return checkPrivate(ctx, tree, path)
}

// checkPrivate returns an error if ssh-keygen cannot sign with path (ssh-keygen(1), -Y sign): its
// private key is neither in a file nor in ssh-agent, or this user owns the file and others can read
// it.
func checkPrivate(ctx context.Context, tree, path string) error {
	private, err := isPrivate(path)
	if err != nil {
		return fmt.Errorf("--key: %w", err)
	}
	file := strings.TrimSuffix(path, ".pub")
	if info, err := os.Stat(file); err == nil && (private || file != path) {
		owner, ok := info.Sys().(*syscall.Stat_t)
		if info.Mode().Perm()&0o077 != 0 && (!ok || int(owner.Uid) == os.Getuid()) {
			return fmt.Errorf("--key: others can read %s, so ssh-keygen does not use it: "+
				"`chmod 600 %[1]s`", file)
		}
		return nil
	}
	if private {
		return fmt.Errorf("--key: ssh-keygen takes %s for a public key: rename it, without .pub",
			path)
	}

	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	key, _, _, _, err := ssh.ParseAuthorizedKey(text)
	if err != nil {
		return fmt.Errorf("--key %s: %w", path, err)
	}
	agent, err := command(ctx, tree, "ssh-add", "-L")
	if line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))); err != nil ||
		!strings.Contains(agent, line) {
		return errors.Join(fmt.Errorf("--key %s is a public key, and its private key is neither "+
			"beside it nor in ssh-agent: run ssh-add", path), err)
	}
	return nil
}

// isPrivate reports whether the file of a key has a private key. It reads only how the file begins.
func isPrivate(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	const begin = "-----BEGIN "
	text := make([]byte, len(begin))
	_, err = io.ReadFull(f, text)
	return string(text) == begin, err
}

// checkTree returns an error unless the tree is the top folder of a checkout, has all files of a
// commit that has the tag, and nothing else outside out/. Files that git ignores count too, because
// Go's tools do not ignore them.
func checkTree(ctx context.Context, tree, tag string) error {
	if up, err := command(ctx, tree, "git", "rev-parse", "--show-prefix"); err != nil ||
		strings.TrimSpace(up) != "" {
		return errors.Join(fmt.Errorf("%s is not the top folder of a checkout", tree), err)
	}

	status, err := command(ctx, tree, "git", "status", "--porcelain", "--untracked-files=all",
		"--ignored=matching")
	if err != nil {
		return err
	}
	if status = strings.Replace(status, "!! out/\n", "", 1); status != "" {
		return fmt.Errorf("the tree is not clean: commit or remove\n%s", firstLines(status, 10))
	}

	tags, err := command(ctx, tree, "git", "tag", "--points-at", "HEAD")
	if err != nil {
		return err
	}
	if !slices.Contains(strings.Fields(tags), tag) {
		return fmt.Errorf("the commit has no tag %s: `git tag %[1]s`, or check out the tag", tag)
	}
	return nil
}

// firstLines returns at most n lines of text.
func firstLines(text string, n int) string {
	lines := strings.SplitAfterN(text, "\n", n+1)
	if len(lines) > n {
		lines[n] = "…"
	}
	return strings.TrimRight(strings.Join(lines, ""), "\n")
}
