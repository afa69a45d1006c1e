// Package cniplugin installs CNI plugins into the directory in which runtimes find
// them, and removes them.
//
// Promises: a plugin is replaced as a whole or not at all, also while it runs. A replaced file that
// was not ours is kept beside the plugin, and is restored when the plugin is removed. A file that
// another program changed since is never removed. Doing either twice changes nothing.
//
// The file RecordName beside the plugins records the name and the SHA-256 of each installed plugin.
// It is written before a plugin is replaced and after one is removed. So no plugin of ours is
// forgotten, regardless of what happens in between.
//
// It replaces plugins of the same names that others installed, because older releases do not speak
// the version of the specification that runtimes choose (CNI 1.1), and the new ones speak all the
// old.
//
// Start reading at Install.
package cniplugin
