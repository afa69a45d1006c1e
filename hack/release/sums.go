package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// sumsFile has the SHA-256 of all other files of a release, in the format of sha256sum(1).
// signature is the suffix that ssh-keygen gives to the file of a signature. versionFile has the
// version in a line, so that the signature is for this version only.
const (
	sumsFile    = "SHA256SUMS"
	signature   = ".sig"
	versionFile = "VERSION"
)

// namespace is the domain in which the signature is valid, so that it cannot stand for anything
// else that the same key signs. verify.sh has it, too.
const namespace = "kubeveil-release"

// plainName matches the names of files that verify.sh accepts.
var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// sign writes SHA256SUMS and its signature into dir.
func sign(ctx context.Context, o order, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}

	var sums strings.Builder
	for _, e := range entries { // sorted by name
		if !e.Type().IsRegular() || !plainName.MatchString(e.Name()) {
			return fmt.Errorf("%q is not a regular file with a plain name",
				filepath.Join(dir, e.Name()))
		}
		sum, err := sumOf(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%s  %s\n", sum, e.Name())
	}
	path := filepath.Join(dir, sumsFile)
	if err := os.WriteFile(path, []byte(sums.String()), 0o644); err != nil {
		return err
	}

	// The key may be a relative path.
	key, err := filepath.Abs(o.key)
	if err != nil {
		return err
	}
	_, err = command(ctx, o.tree, "ssh-keygen", "-Y", "sign", "-f", key, "-n", namespace, path)
	return err
}

// sumOf returns the SHA-256 of a file in hexadecimal.
func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}
