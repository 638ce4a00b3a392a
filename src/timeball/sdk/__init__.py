"""timeball.sdk"""
