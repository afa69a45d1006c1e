package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// A seed is a tar that can be used as a disk: it has whole sectors and the files in order, with
// their modes and links.
func TestSeedIsADisk(t *testing.T) {
	dir := t.TempDir()
	copied := filepath.Join(dir, "program")
	filetest.Write(t, copied, []byte("a program"), 0o755)

	path := filepath.Join(dir, "seed.tar")
	s := Seed{
		"/etc/hosts":     {Content: "127.0.0.1 localhost\n"},
		"/root/key":      {Content: "secret", Mode: 0o600},
		"/usr/bin/copy":  {From: copied},
		"/usr/bin/other": {From: copied, Mode: 0o700},
		"/usr/bin/link":  {Link: "/opt/lab/link"},
	}
	errtest.Must(t, s.Write(path))

	b := filetest.Read(t, path)
	if len(b)%512 != 0 {
		t.Errorf("%d bytes are not whole sectors", len(b))
	}

	wants := []struct {
		name, content, link string
		mode                int64
	}{
		{"etc/hosts", "127.0.0.1 localhost\n", "", 0o644},
		{"root/key", "secret", "", 0o600},
		{"usr/bin/copy", "a program", "", 0o755},
		{"usr/bin/link", "", "/opt/lab/link", 0o644},
		{"usr/bin/other", "a program", "", 0o700},
	}

	r := tar.NewReader(bytes.NewReader(b))
	for _, want := range wants {
		h, err := r.Next()
		errtest.Must(t, err)
		content, err := io.ReadAll(r)
		errtest.Must(t, err)
		if h.Name != want.name || h.Mode != want.mode || h.Linkname != want.link ||
			string(content) != want.content {
			t.Errorf("got %s mode %o link %q with %q, want %+v", h.Name, h.Mode, h.Linkname,
				content, want)
		}
	}

	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last file: %v", err)
	}
}
