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

// attempt is a change of the disks by their owner.
type attempt struct {
	what string
	// change returns the new content of the first and the second disk.
	change func(first, second []byte) (newFirst, newSecond []byte)
	want   crypt.Kind
}

// attempts returns all attempts. older is an image of the first disk from before the last opening.
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

// nullCipher returns a copy of image whose LUKS2 header names the null cipher, in both places.
func nullCipher(image []byte) []byte {
	const cipher, null = `"aes-xts-plain64"`, `"cipher_null-ecb"`
	head := bytes.ReplaceAll(image[:crypt.MetadataSize], []byte(cipher), []byte(null))
	return append(head, image[crypt.MetadataSize:]...)
}

// attack closes the volumes, makes all attempts, and checks at the end that the first volume still
// opens with its file.
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

// reopen closes the first volume and opens it again, so that an earlier image of its disk is
// outdated.
func (d *demo) reopen(ctx context.Context) error {
	for _, verb := range []string{"unstage", "stage"} {
		if _, err := d.machine.Do(ctx, d.tool(verb, firstVolume, firstAt)...); err != nil {
			return err
		}
	}
	return d.same(ctx, "after a new mount")
}

// same checks that the file on the first volume has the digest of the written file. when describes
// the moment.
func (d *demo) same(ctx context.Context, when string) error {
	out, err := d.machine.Exec(ctx, fmt.Sprintf("sha256sum <%s/%s", firstAt, fileName))
	if err != nil {
		return err
	}
	if got := strings.TrimSpace(string(out)); got != d.digest {
		return fmt.Errorf("the file %s: SHA-256 %s, want %s", when, got, d.digest)
	}
	d.say("%s the file is unchanged", when)
	return nil
}

// try changes the disks and tries to open the first volume. It records whether the driver refuses
// the volume and does not write to the disk. Then it restores the disks.
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

// put writes the given content to both disks.
func (d *demo) put(first, second []byte) error {
	if err := d.first.WriteAt(0, first); err != nil {
		return err
	}
	return d.second.WriteAt(0, second)
}

// formerKey tries to open the first volume with only the first key-encryption key, which rewrap has
// replaced.
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

// note adds an attempt and its result to the report.
func (d *demo) note(r report.Refusal) {
	d.report.Refused = append(d.report.Refused, r)
	d.say("%s: %s", r.What, r.Got)
}
