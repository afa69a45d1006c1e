// Package cniplugin puts CNI plugins into the directory where runtimes look for
// them, and takes them away again.
//
// Promises: a plugin is replaced as a whole or not at all, also while it runs. What stood there and
// was not ours is kept beside and comes back when ours goes. A file that was changed since is
// theirs: it is never removed. Doing either twice changes nothing.
//
// What was installed is written down beside the plugins, in the file that RecordName names: name
// and SHA-256 of each. The record is written before a plugin is replaced and after one is removed,
// so that whatever happens in between, nothing of ours is forgotten.
//
// It replaces plugins of the same names that others installed, because older releases do not speak
// the version of the specification that runtimes choose (CNI 1.1), and the new ones speak all the
// old.
//
// Start reading at Install.
package cniplugin
