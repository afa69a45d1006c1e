package storage

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/e2e/disk/answer"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

// attempt is something that the owner of the disks does.
type attempt struct {
	what string
	// change returns what he puts on the first and the second disk.
	change func(first, second []byte) (newFirst, newSecond []byte)
	want   crypt.Kind
}

// older is the content of the disk while it was mounted before.
func attempts(older []byte) []attempt {
	return []attempt{
		{"The two volumes' disks are swapped", func(a, b []byte) ([]byte, []byte) { return b, a },
			crypt.OtherVolume},
		{"The disk is replaced by an empty one",
			func(a, b []byte) ([]byte, []byte) { return make([]byte, len(a)), b }, crypt.Blank},
		{"The disk is brought back as it was an hour ago",
			func(_, b []byte) ([]byte, []byte) { return older, b }, crypt.OlderImage},
		{"One bit of the header is flipped", func(a, b []byte) ([]byte, []byte) {
			a = bytes.Clone(a)
			a[5000] ^= 1
			return a, b
		}, crypt.Tampered},
		{"The header states that nothing is encrypted",
			func(a, b []byte) ([]byte, []byte) { return nullCipher(a), b }, crypt.Tampered},
	}
}

// nullCipher is an image whose LUKS2 header has the null cipher, in both copies.
func nullCipher(image []byte) []byte {
	const cipher, null = `"aes-xts-plain64"`, `"cipher_null-ecb"`
	head := bytes.ReplaceAll(image[:crypt.MetadataSize], []byte(cipher), []byte(null))
	return append(head, image[crypt.MetadataSize:]...)
}

// attack lets the owner of the disks do what he can while the volumes are closed.
func (d *demo) attack(ctx context.Context) error {
	older, err := d.first.Image()
	if err != nil {
		return err
	}
	if err := d.reopen(ctx); err != nil {
		return err
	}
	if _, err := d.machine.Do(ctx, d.tool("unstage", secondVolume, secondAt)...); err != nil {
		return err
	}
	if _, err := d.machine.Do(ctx, d.tool("unstage", firstVolume, firstAt)...); err != nil {
		return err
	}
	for _, a := range attempts(older) {
		if err := d.try(ctx, a); err != nil {
			return fmt.Errorf("%s: %w", a.what, err)
		}
	}
	if err := d.formerKey(ctx); err != nil {
		return err
	}
	if _, err := d.machine.Do(ctx, d.tool("stage", firstVolume, firstAt)...); err != nil {
		return err
	}
	return d.same(ctx, "after all attempts")
}

// reopen closes the first volume and opens it again, so that its former image is an older one.
func (d *demo) reopen(ctx context.Context) error {
	for _, verb := range []string{"unstage", "stage"} {
		if _, err := d.machine.Do(ctx, d.tool(verb, firstVolume, firstAt)...); err != nil {
			return err
		}
	}
	return d.same(ctx, "after a new mount")
}

// same compares the file on the first volume with what was written.
func (d *demo) same(ctx context.Context, when string) error {
	out, err := d.machine.Exec(ctx, fmt.Sprintf("sha256sum <%s/%s", firstAt, fileName))
	if err != nil {
		return err
	}
	if got := strings.TrimSpace(string(out)); got != d.digest {
		return fmt.Errorf("the file %s: SHA-256 %s, want %s", when, got, d.digest)
	}
	d.say("%s the file is what was written", when)
	return nil
}

// try changes the disks and opens the first volume. It checks that the driver refuses the volume
// and does not write to the disk, and restores the disks.
func (d *demo) try(ctx context.Context, a attempt) error {
	first, err := d.first.Image()
	if err != nil {
		return err
	}
	second, err := d.second.Image()
	if err != nil {
		return err
	}
	newFirst, newSecond := a.change(first, second)
	if err := d.put(newFirst, newSecond); err != nil {
		return err
	}

	got, err := d.machine.Tool(ctx, d.tool("stage", firstVolume, firstAt)...)
	if err != nil {
		return err
	}
	found, err := d.first.Image()
	if err != nil {
		return err
	}

	r := report.Refusal{What: a.what, Want: fmt.Sprintf("refused: %s; nothing written", a.want),
		Got: "opened"}
	if got.Error != "" {
		r.Got = got.Error
	}

	r.OK = got.Kind == string(a.want) && bytes.Equal(found, newFirst)
	if !bytes.Equal(found, newFirst) {
		r.Got += "; the disk was written"
	}

	d.note(r)
	if got.Error == "" {
		return fmt.Errorf("the volume was opened")
	}

	return d.put(first, second)
}

// put makes the disks what they are to be.
func (d *demo) put(first, second []byte) error {
	if err := d.first.WriteAt(0, first); err != nil {
		return err
	}
	return d.second.WriteAt(0, second)
}

// formerKey opens the volume by the first key-encryption key alone.
func (d *demo) formerKey(ctx context.Context) error {
	got, err := d.machine.Tool(ctx, d.tool("--key", "1", "stage", firstVolume, firstAt)...)
	if err != nil {
		return err
	}
	r := report.Refusal{What: "The former key-encryption key is found in a backup",
		Want: "refused: " + answer.WrongKey, Got: "opened", OK: got.Kind == answer.WrongKey}
	if got.Error != "" {
		r.Got = got.Error
	}
	d.note(r)
	return nil
}

// note adds what came of an attempt to the report.
func (d *demo) note(r report.Refusal) {
	d.report.Refused = append(d.report.Refused, r)
	d.say("%s: %s", r.What, r.Got)
}
